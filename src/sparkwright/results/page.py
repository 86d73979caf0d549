"""One self-contained HTML page of an experiment."""

from __future__ import annotations

from pathlib import Path

from sparkwright.results.models import Results


def write(folder: Path, results: Results) -> str:
    return "report.html (later)"
