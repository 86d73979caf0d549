"""Ctrl-C while the commands are still being imported, or after they ended: a sentence there too, never a traceback.

It is imported for its effect, first of all.
"""

from __future__ import annotations

import os
import sys
from pathlib import PurePath
from types import TracebackType

PROGRAMS = ("sparkwright", "invoke", "inv")
SENTENCE = "interrupted by Ctrl-C."


def install() -> None:
    """For these programs only: another program that imports the package keeps its own hook."""
    if PurePath(sys.argv[0]).name in PROGRAMS:
        sys.excepthook = _reported


def _reported(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    from sparkwright.errors import Exit  # not at the top: nothing of the package is imported before the hook is set

    print(SENTENCE, file=sys.stderr, flush=True)
    os._exit(Exit.INCONCLUSIVE)


install()
