"""What makes a short command start sooner, and has nothing to do with what it does."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

NAME = "unittest.mock"


def collect_seldom() -> None:
    """What an import makes is no garbage: looking for some after every 700 objects is another tenth."""
    gc.set_threshold(100_000)


@contextmanager
def without_mock() -> Iterator[None]:
    """While the block imports Invoke, `unittest.mock` is a name that is looked up when it is called.

    Only its MockContext needs it, and it brings asyncio along, a tenth of a short command. Whoever makes a MockContext still
    gets a real Mock.
    """
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


def _mock(*args: Any, **options: Any) -> Any:
    from unittest.mock import Mock

    return Mock(*args, **options)
