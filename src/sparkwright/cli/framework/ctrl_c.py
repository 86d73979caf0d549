"""A sentence instead of a traceback for Ctrl-C while the commands are imported, or after they ended.

The module is imported for its effect, before all others.
"""

from __future__ import annotations

import os
import sys
from pathlib import PurePath
from types import TracebackType

PROGRAMS = ("sparkwright", "invoke", "inv")
SENTENCE = "interrupted by Ctrl-C."


def install() -> None:
    """Install the hook in our programs only. Another program that imports the package keeps its own."""
    if PurePath(sys.argv[0]).name in PROGRAMS:
        sys.excepthook = _reported


def _reported(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    from sparkwright.errors import Exit  # not at the top, as the hook is set before any import

    print(SENTENCE, file=sys.stderr, flush=True)
    os._exit(Exit.INCONCLUSIVE)


install()
