"""Options, architectures and environment variables of vLLM, each with the releases that have it (releases.json).

"0.10.2..0.17.1, 0.33.0.." means: the releases from 0.10.2 to 0.17.1, and all from 0.33.0 on.
tests/real_engine/releases/sources.py generates the file from the source in each release's wheel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from packaging.version import Version

TableName = Literal["options", "architectures", "variables"]
#: consecutive releases: the indexes of the first and the last in `release_names()`
ReleaseRun = tuple[int, int]
TABLES_FILE = Path(__file__).with_suffix(".json")
#: first release after the newest in the tables
FIRST_RELEASE_AFTER_TABLES = "0.34.0"


@cache
def _load_tables() -> Mapping[str, Any]:
    tables: Mapping[str, Any] = json.loads(TABLES_FILE.read_bytes())
    return tables


@cache
def release_names() -> tuple[str, ...]:
    """Return the releases in the tables, oldest first."""
    return tuple(_load_tables()["releases"])


@cache
def release_runs(table: TableName) -> Mapping[str, tuple[ReleaseRun, ...]]:
    """Return for each name in a table the runs of releases that have it, oldest first."""
    indexes = {release: index for index, release in enumerate(release_names())} | {"": len(release_names()) - 1}
    rows = {name: [run.partition("..") for run in runs.split(", ")] for name, runs in _load_tables()[table].items()}
    return {name: tuple((indexes[first], indexes[last]) for first, _, last in runs) for name, runs in rows.items()}


def find_introduction(index: int) -> str:
    """Return the release that introduced a change which first appears in the release at this index.

    The tables skip patch releases: the result is the .0 of the minor version, unless the release before this index has the same minor version.
    """
    release, previous = Version(release_names()[index]), Version(release_names()[index - 1])
    is_same_minor = index > 0 and previous.release[:2] == release.release[:2]
    return release_names()[index] if is_same_minor else f"{release.major}.{release.minor}.0"
