"""The cells of an experiment as rows: one for each load and arm, with all repetitions."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from sparkwright.bench.results_models import Cell, Figures, Results

#: group of a load's streams that tables show; all streams for other loads
SHOWN = {"hol1": "decoding", "itl": "decoding", "hol2": "short", "smoke": "stream", "depth": "stream"}


@dataclass(frozen=True)
class Row:
    """All repetitions of one load on one arm."""

    arm: str
    load: dict[str, Any]
    cells: tuple[Cell, ...]

    def values(self, name: str) -> list[float]:
        """Return a figure of each cell that has it: of the group that this load measures, or a derived one."""
        found = (
            getattr(shown(cell), name) if name in Figures.model_fields else cell.derived.get(name)
            for cell in self.cells
        )
        return [float(value) for value in found if value is not None]

    def figure(self, name: str) -> float | None:
        """Return the worst of all repetitions for the largest gap, which a median would hide, and the median for all else."""
        values = self.values(name)
        middle = max if name == "largest_gap_ms" else statistics.median
        return middle(values) if values else None

    @property
    def words(self) -> str:
        return load_words(self.load)


def rows(results: Results) -> list[Row]:
    """Return the rows, ordered by load, then arm, without failed cells."""
    found: dict[str, dict[str, list[Cell]]] = {}
    for cell in results.cells:
        if cell.verdict != "failed":
            found.setdefault(load_key(cell.load), {}).setdefault(cell.arm, []).append(cell)
    return [Row(arm, cells[0].load, tuple(cells)) for arms in found.values() for arm, cells in arms.items()]


def load_key(load: dict[str, Any]) -> str:
    """Return a key that is equal for cells of the same load."""
    return repr(sorted((name, value) for name, value in load.items() if name != "prompts" and value))


def load_words(load: dict[str, Any]) -> str:
    """Return a load in a few words."""
    rate, streams, long_tokens = load.get("rate"), load.get("concurrency"), load.get("long_tokens")
    how = f"{rate:g} req/s" if rate else f"c={streams}" if streams else ""
    words = {
        "smoke": f"one stream, pp{load.get('prompt_tokens')} tg{load.get('output_tokens')}",
        "serve": f"serve {how}",
        "hol1": f"H1: {load.get('streams')} decoding, long {long_tokens}",
        "hol2": f"H2: long {long_tokens}, {load.get('shorts')} shorts behind",
        "itl": f"ITL: {load.get('longs')} x long {long_tokens}",
        "depth": f"depth {load.get('prompt_tokens')} x {streams}",
        "mixed": f"mixed {load.get('longs')} long + {load.get('shorts')} short, {how}",
    }
    heat = load.get("temperature")
    hot = f", temperature {heat:g}" if heat else ""
    return words.get(str(load.get("kind")), str(load.get("kind"))) + hot


def shown(cell: Cell) -> Figures:
    """Return the figures of a cell that tables show."""
    return cell.groups.get(SHOWN.get(cell.kind, ""), cell.figures)
