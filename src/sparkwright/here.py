"""The project folder of a command: the current one, or the one that a program opened (`Fleet.open`).

A process has one current folder and may hold several fleets, so code that depends on the folder asks here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TypeVar

_FOLDER: ContextVar[Path | None] = ContextVar("opened", default=None)

Params = ParamSpec("Params")
Result = TypeVar("Result")


def project_folder() -> Path:
    """Return the opened folder of this thread, or the current one."""
    return _FOLDER.get() or Path.cwd()


@contextmanager
def use_folder(path: Path) -> Iterator[None]:
    """Use a folder within the block, and in the threads that it starts through `bind_folder`."""
    token = _FOLDER.set(path)
    try:
        yield
    finally:
        _FOLDER.reset(token)


def bind_folder(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Return a function for another thread that keeps the opened folder, which a thread does not inherit."""
    opened_folder = _FOLDER.get()
    if opened_folder is None:
        return function

    def wrapper(*args: Params.args, **options: Params.kwargs) -> Result:
        with use_folder(opened_folder):
            return function(*args, **options)

    return wrapper
