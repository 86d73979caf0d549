"""The folder that a command speaks from: the current one, or the one that a program opened (`Fleet.open`).

A process has one current folder and may hold several fleets, so what depends on it asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TypeVar

_OPENED: ContextVar[Path | None] = ContextVar("opened", default=None)

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def folder() -> Path:
    """The opened folder of this thread, or the current one."""
    return _OPENED.get() or Path.cwd()


@contextmanager
def opened(path: Path) -> Iterator[None]:
    """For the block, and what it starts through `carried`, this is the folder."""
    before = _OPENED.set(path)
    try:
        yield
    finally:
        _OPENED.reset(before)


def carried(act: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """The same function for another thread, which by itself would not know of the opened folder."""
    at = _OPENED.get()
    if at is None:
        return act

    def there(*args: Given.args, **options: Given.kwargs) -> Answer:
        with opened(at):
            return act(*args, **options)

    return there
