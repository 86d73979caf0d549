"""The page of an experiment: each chart with its table."""

from __future__ import annotations

from pathlib import Path

from sparkwright import installation
from sparkwright.bench import compare, results_file, summary
from sparkwright.bench.results_file import Arm, Results
from sparkwright.host.state import write_atomically
from sparkwright.html import charts, svg
from sparkwright.html.page import render


def write(folder: Path, results: Results) -> str:
    """Write the page beside the results. Return its name."""
    write_atomically(folder / results_file.PAGE, html(results).encode(), mode=0o644)
    return results_file.PAGE


def html(results: Results) -> str:
    plots = svg.available()
    found = charts.of(results)
    return render(
        "experiment_page.html.j2",
        results=results,
        words=_words(results),
        notes=[*summary.extras(results), *summary.verdicts(results)],
        table=_table(results),
        differences=compare.arms(results),
        sides=results.sides,
        number=summary.number,
        charts=[(chart, svg.svg(chart) if plots else "") for chart in found],
        plots=plots or not found,
        install="" if plots else installation.adding("report"),
        effective=_effective,
    )


def _words(results: Results) -> str:
    where = f"on {results.host}, " if results.host else ""
    return f"{results.experiment} {where}{summary.MEASURED[results.measured_from]}, {results.created_at}"


def _table(results: Results) -> list[list[str]]:
    """Return the same rows as on the terminal."""
    titles, found = summary.figures(results)
    body = [[row.words, row.arm, str(len(row.cells)), *cells] for row, cells in found]
    return [["Load", "Arm", "Runs", *titles], *body]


def _effective(arm: Arm) -> str:
    return ", ".join(summary.switches(arm.effective)) if arm.effective else "not read"
