"""Start-up of the program: show a message instead of a traceback on Ctrl-C, and tune the interpreter.

The module is imported for its effects, before all others.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import PurePath
from types import TracebackType

PROGRAM_NAMES = ("sparkwright", "invoke", "inv")
INTERRUPTED_MESSAGE = "interrupted by Ctrl-C."
#: threshold for the garbage collector: a deploy's imports and plan create 110,000 objects, none of them garbage, and each
#: collection takes 15 ms
GC_THRESHOLD = 300_000


def install() -> None:
    """Install the hook in our own programs. Other programs that import the package keep theirs."""
    if PurePath(sys.argv[0]).name in PROGRAM_NAMES:
        sys.excepthook = _exit_on_interrupt


def _exit_on_interrupt(error_type: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    if not issubclass(error_type, KeyboardInterrupt):
        sys.__excepthook__(error_type, error, traceback)
        return
    from sparkwright.errors import Exit  # not at the top, because the hook is set before any import

    print(INTERRUPTED_MESSAGE, file=sys.stderr, flush=True)
    os._exit(Exit.INCONCLUSIVE)


def enable_bytecode() -> None:
    """Let Python write bytecode, unless the user disabled it (-B, PYTHONDONTWRITEBYTECODE).

    Invoke disables it. In a checkout, a deploy would then compile 136 modules every time, which takes a fifth of its CPU time.
    """
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)


install()
enable_bytecode()  # `invoke` has already parsed its options
gc.set_threshold(GC_THRESHOLD)
