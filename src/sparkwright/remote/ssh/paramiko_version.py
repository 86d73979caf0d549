"""A faster import of paramiko: it saves a connection a fifth of its imports.

Paramiko asks importlib.metadata for its own version on import. That imports the readers of mail, zip and CSV, and reads a file of
10 KB, while the name of the folder that pip made beside it holds the version.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

NAME = "importlib.metadata"


@contextmanager
def by_folder() -> Iterator[None]:
    """Within the block that imports Paramiko, look up its version by the folder's name; everything else is looked up as usual."""
    if NAME in sys.modules:
        yield
        return
    stand_in = ModuleType(NAME)

    def real(name: str) -> Any:
        if sys.modules.get(NAME) is stand_in:
            del sys.modules[NAME]
        return getattr(importlib.import_module(NAME), name)

    stand_in.version = lambda name: of_folder(name) or real("version")(name)  # type: ignore[attr-defined]
    stand_in.__getattr__ = real  # type: ignore[method-assign]
    sys.modules[NAME] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(NAME) is stand_in:
            del sys.modules[NAME]


def of_folder(name: str) -> str:
    """Return the version of a package that is being imported, by the one folder NAME-VERSION.dist-info beside it; empty for
    none."""
    package = sys.modules.get(name)
    siblings = [Path(path).parent for path in package.__path__] if package is not None else []
    found = [path.name for folder in siblings for path in folder.glob(f"{name}-*.dist-info")]
    return found[0].removesuffix(".dist-info").removeprefix(f"{name}-") if len(found) == 1 else ""
