"""Start-up of a program: a sentence instead of a traceback for Ctrl-C, and speed-ups without side effects.

The module is imported for its effects, before all others.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import ModuleType, TracebackType
from typing import Any

PROGRAMS = ("sparkwright", "invoke", "inv")
SENTENCE = "interrupted by Ctrl-C."


def install() -> None:
    """Install the hook in our own programs. Other programs that import the package keep theirs."""
    if PurePath(sys.argv[0]).name in PROGRAMS:
        sys.excepthook = _reported


def _reported(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    from sparkwright.errors import Exit  # not at the top, because the hook is set before any import

    print(SENTENCE, file=sys.stderr, flush=True)
    os._exit(Exit.INCONCLUSIVE)


install()

NAME = "unittest.mock"
YAML = "invoke.vendor.yaml"
#: threshold for the garbage collector: a deploy's imports and plan create 110,000 objects, none of them garbage, and each
#: collection takes 15 ms
OBJECTS = 300_000


@contextmanager
def importing() -> Iterator[None]:
    """Speed up the block that imports Invoke.

    `unittest.mock`, which only Invoke's MockContext needs, imports asyncio, which takes a tenth of the time of a short command.
    It is replaced with a stand-in that imports it when called. Imports create no garbage, and collecting after every 700 objects
    takes another tenth. Invoke's own copy of PyYAML is replaced with the one that every command needs.
    """
    keep_bytecode()  # `invoke` has already parsed its options
    import yaml

    gc.set_threshold(OBJECTS)
    sys.modules.setdefault(YAML, yaml)
    if NAME in sys.modules:
        yield
        return
    stand_in = ModuleType(NAME)
    stand_in.Mock = _mock  # type: ignore[attr-defined]
    sys.modules[NAME] = stand_in
    try:
        yield
    finally:
        del sys.modules[NAME]


def keep_bytecode() -> None:
    """Let Python write bytecode, unless the user disabled it (-B, PYTHONDONTWRITEBYTECODE).

    Invoke disables it. In a checkout, every command would then recompile all modules that no earlier command had imported before
    that point, which are 136 modules and a fifth of the CPU time for a deploy.
    """
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)


def _mock(*args: Any, **options: Any) -> Any:
    from unittest.mock import Mock

    return Mock(*args, **options)
