"""The project folder that the code works in: the current directory, or the folder that a program opened with `Fleet.open`.

A process can open several fleets but has only one current directory, so use `project_folder` instead of `Path.cwd`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import ParamSpec, TypeVar

_OPENED_FOLDER: ContextVar[Path | None] = ContextVar("opened_folder", default=None)

Params = ParamSpec("Params")
Result = TypeVar("Result")


def project_folder() -> Path:
    """Return the folder opened in this thread, or the current directory."""
    return _OPENED_FOLDER.get() or Path.cwd()


@contextmanager
def use_folder(path: Path) -> Iterator[None]:
    """Use a project folder during a `with` block. Threads inherit it only through `bind_folder`."""
    token = _OPENED_FOLDER.set(path)
    try:
        yield
    finally:
        _OPENED_FOLDER.reset(token)


def bind_folder(function: Callable[Params, Result]) -> Callable[Params, Result]:
    """Wrap a function so that it uses the opened folder when called in another thread."""
    opened_folder = _OPENED_FOLDER.get()
    if opened_folder is None:
        return function

    def wrapper(*args: Params.args, **options: Params.kwargs) -> Result:
        with use_folder(opened_folder):
            return function(*args, **options)

    return wrapper
