"""The project folder of a command: the current one, or the one that a program opened (`Fleet.open`).

A process has one current folder and may hold several fleets, so code that depends on the folder asks here.
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
    """Return the opened folder of this thread, or the current one."""
    return _OPENED.get() or Path.cwd()


@contextmanager
def opened(path: Path) -> Iterator[None]:
    """Use a folder within the block, and in the threads that it starts through `carried`."""
    before = _OPENED.set(path)
    try:
        yield
    finally:
        _OPENED.reset(before)


def carried(act: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Return a function for another thread that keeps the opened folder, which a thread does not inherit."""
    at = _OPENED.get()
    if at is None:
        return act

    def there(*args: Given.args, **options: Given.kwargs) -> Answer:
        with opened(at):
            return act(*args, **options)

    return there
