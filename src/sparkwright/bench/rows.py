"""The cells of an experiment as rows: a load on an arm, its repetitions together."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from sparkwright.bench.results_models import Cell, Figures, Results

#: which of a load's groups stands in the table, where it is not all of its streams
SHOWN = {"hol1": "decoding", "itl": "decoding", "hol2": "short", "smoke": "stream"}


@dataclass(frozen=True)
class Row:
    """All repetitions of one load on one arm. median: of a figure over them; None where no cell has it."""

    arm: str
    load: dict[str, Any]
    cells: tuple[Cell, ...]

    def median(self, name: str) -> float | None:
        """Of a figure of the group that this load is there for."""
        values = [getattr(shown(cell), name) for cell in self.cells]
        found = [float(value) for value in values if value is not None]
        return statistics.median(found) if found else None

    def derived(self, name: str) -> float | None:
        """The same of a derived figure."""
        found = [cell.derived[name] for cell in self.cells if name in cell.derived]
        return statistics.median(found) if found else None

    @property
    def worst_gap_ms(self) -> float | None:
        """The largest gap of all repetitions: what a median would hide."""
        found = [gap for cell in self.cells if (gap := shown(cell).largest_gap_ms) is not None]
        return max(found, default=None)

    @property
    def words(self) -> str:
        """The load, shortly."""
        return load_words(self.load)


def rows(results: Results) -> list[Row]:
    """In the order of loads, then arms; failed cells are not in them."""
    found: dict[tuple[str, str], list[Cell]] = {}
    loads: list[str] = []
    for cell in results.cells:
        if cell.verdict == "failed":
            continue
        words = load_key(cell.load)
        if words not in loads:
            loads.append(words)
        found.setdefault((words, cell.arm), []).append(cell)
    return [
        Row(arm, cells[0].load, tuple(cells))
        for words in loads
        for (other, arm), cells in found.items()
        if other == words
    ]


def load_key(load: dict[str, Any]) -> str:
    """What makes two cells the same load."""
    return repr(sorted((name, value) for name, value in load.items() if name != "prompts" and value))


def load_words(load: dict[str, Any]) -> str:
    """A load in a few words."""
    rate, streams, long_tokens = load.get("rate"), load.get("concurrency"), load.get("long_tokens")
    how = f"{rate:g} req/s" if rate else f"c={streams}" if streams else ""
    words = {
        "smoke": f"one stream, pp{load.get('prompt_tokens')} tg{load.get('output_tokens')}",
        "serve": f"serve {how}",
        "hol1": f"H1: {load.get('streams')} decoding, long {long_tokens}",
        "hol2": f"H2: long {long_tokens}, {load.get('shorts')} shorts behind",
        "itl": f"ITL: {load.get('longs')} x long {long_tokens}",
        "mixed": f"mixed {load.get('longs')} long + {load.get('shorts')} short, {how}",
    }
    return words.get(str(load.get("kind")), str(load.get("kind")))


def shown(cell: Cell) -> Figures:
    """The figures that a table shows of a cell."""
    return cell.groups.get(SHOWN.get(cell.kind, ""), cell.figures)
