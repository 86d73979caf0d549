"""What lets Paramiko be imported sooner: it asks importlib.metadata for its own version, which brings all of email along."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

NAME = "importlib.metadata"
SUFFIX = ".dist-info"


@contextmanager
def importing() -> Iterator[None]:
    """For the block that imports Paramiko: the version comes from the name of the folder that metadata would read (15 ms)."""
    if NAME in sys.modules or "paramiko" in sys.modules:
        yield
        return
    stand_in = ModuleType(NAME)
    stand_in.version = _version  # type: ignore[attr-defined]
    stand_in.__getattr__ = _other  # type: ignore[method-assign]
    sys.modules[NAME] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(NAME) is stand_in:
            del sys.modules[NAME]


def _version(package: str) -> str:
    """The version of a package that is being imported."""
    place = os.path.dirname(sys.modules[package].__path__[0]) if package in sys.modules else ""  # noqa: PTH120
    begins = f"{package}-"
    found = [one for one in os.listdir(place or ".") if one.startswith(begins) and one.endswith(SUFFIX)]  # noqa: PTH208
    if place and len(found) == 1:
        return found[0].removeprefix(begins).removesuffix(SUFFIX)
    version: str = _other("version")(package)
    return version


def _other(name: str) -> Any:
    """What is asked of the real module."""
    sys.modules.pop(NAME, None)
    import importlib.metadata

    return getattr(importlib.metadata, name)
