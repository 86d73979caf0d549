"""Invoke without unittest.mock, which only its MockContext needs and which brings asyncio along: a tenth of a short command.

Whoever makes a MockContext still gets a real Mock.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

NAME = "unittest.mock"


@contextmanager
def without_mock() -> Iterator[None]:
    """While the block imports Invoke, `unittest.mock` is a name that is looked up when it is called."""
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
