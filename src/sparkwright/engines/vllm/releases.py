"""Options, architectures and environment variables of each release of vLLM (releases.json, a row a name).

A row holds the runs of releases that have the name, as "0.10.2..0.17.1, 0.33.0..": without the last one the newest has it.
tests/real_engine/releases/sources.py writes the file, from the source in each release's wheel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

TableName = Literal["options", "architectures", "variables"]
#: indexes in `release_names()`: the first and the last release of a run
Run = tuple[int, int]
FILE = Path(__file__).with_suffix(".json")


@cache
def _load_tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = json.loads(FILE.read_bytes())
    return tables


@cache
def release_names() -> tuple[str, ...]:
    """Return the releases whose source was read, oldest first."""
    return tuple(_load_tables()["releases"])


@cache
def release_runs(part: TableName) -> Mapping[str, tuple[Run, ...]]:
    """Return the runs of releases that have a name, oldest first, by name."""
    indexes = {release: index for index, release in enumerate(release_names())} | {"": len(release_names()) - 1}
    rows = {name: [run.partition("..") for run in runs.split(", ")] for name, runs in _load_tables()[part].items()}
    return {name: tuple((indexes[first], indexes[last]) for first, _, last in runs) for name, runs in rows.items()}


def find_introduction(index: int) -> str:
    """Return the release that brought a change seen first in the one at this index: the first of its minor releases, unless an
    older patch of it was read too."""
    release, previous = Version(release_names()[index]), Version(release_names()[index - 1])
    same_minor = index > 0 and previous.release[:2] == release.release[:2]
    return release_names()[index] if same_minor else f"{release.major}.{release.minor}.0"
