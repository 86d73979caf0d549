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
INTERRUPTED_MESSAGE = "interrupted by Ctrl-C."


def install() -> None:
    """Install the hook in our own programs. Other programs that import the package keep theirs."""
    if PurePath(sys.argv[0]).name in PROGRAMS:
        sys.excepthook = _exit_on_interrupt


def _exit_on_interrupt(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    from sparkwright.errors import Exit  # not at the top, because the hook is set before any import

    print(INTERRUPTED_MESSAGE, file=sys.stderr, flush=True)
    os._exit(Exit.INCONCLUSIVE)


install()

MOCK_MODULE = "unittest.mock"
INVOKE_YAML_MODULE = "invoke.vendor.yaml"
#: threshold for the garbage collector: a deploy's imports and plan create 110,000 objects, none of them garbage, and each
#: collection takes 15 ms
GC_THRESHOLD = 300_000


@contextmanager
def fast_imports() -> Iterator[None]:
    """Speed up the block that imports Invoke.

    `unittest.mock`, which only Invoke's MockContext needs, imports asyncio, which takes a tenth of the time of a short command.
    It is replaced with a stand-in that imports it when called. Imports create no garbage, and collecting after every 700 objects
    takes another tenth. Invoke's own copy of PyYAML is replaced with the one that every command needs.
    """
    enable_bytecode()  # `invoke` has already parsed its options
    import yaml

    gc.set_threshold(GC_THRESHOLD)
    sys.modules.setdefault(INVOKE_YAML_MODULE, yaml)
    if MOCK_MODULE in sys.modules:
        yield
        return
    stand_in = ModuleType(MOCK_MODULE)
    stand_in.Mock = _create_mock  # type: ignore[attr-defined]
    sys.modules[MOCK_MODULE] = stand_in
    try:
        yield
    finally:
        del sys.modules[MOCK_MODULE]


def enable_bytecode() -> None:
    """Let Python write bytecode, unless the user disabled it (-B, PYTHONDONTWRITEBYTECODE).

    Invoke disables it. In a checkout, every command would then recompile all modules that no earlier command had imported before
    that point, which are 136 modules and a fifth of the CPU time for a deploy.
    """
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)


def _create_mock(*args: Any, **options: Any) -> Any:
    from unittest.mock import Mock

    return Mock(*args, **options)
