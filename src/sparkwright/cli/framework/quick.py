"""Speed-ups of a command's start that do not change what it does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import yaml

NAME = "unittest.mock"
YAML = "invoke.vendor.yaml"
#: what a deploy's imports and plan keep is 110,000; to look through it takes 15 ms, and none of it is garbage
OBJECTS = 300_000


@contextmanager
def importing() -> Iterator[None]:
    """For the block that imports Invoke.

    `unittest.mock`, which only Invoke's MockContext needs, brings asyncio along: a tenth of a short command. It becomes a name
    that is looked up when it is called. What an import makes is no garbage: looking for some after every 700 objects is
    another tenth. And Invoke's own copy of PyYAML is a second one beside that which every command needs.
    """
    keep_bytecode()  # `invoke` has read its own options by now
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
    """Let Python keep what it compiles, unless its user said otherwise (-B, PYTHONDONTWRITEBYTECODE).

    Invoke switches that off. From a checkout every command would compile again what no earlier one had imported before that:
    a deploy 136 modules, a fifth of its processor time.
    """
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)


def _mock(*args: Any, **options: Any) -> Any:
    from unittest.mock import Mock

    return Mock(*args, **options)
