"""Results as tables on a terminal: a row a load and arm, repetitions together, and what the experiment was there for."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from sparkwright.results.models import Cell, Figures, Results

#: column title, name in Figures, digits
FIGURES: tuple[tuple[str, str, int], ...] = (
    ("tok/s", "output_tok_per_s", 1),
    ("tok/s a stream", "stream_tok_per_s", 1),
    ("TTFT p50 ms", "ttft_p50_ms", 0),
    ("TTFT p99 ms", "ttft_p99_ms", 0),
    ("ITL p50 ms", "itl_p50_ms", 1),
    ("ITL p99 ms", "itl_p99_ms", 1),
    ("largest gap ms", "largest_gap_ms", 0),
    ("stalls", "stalls", 0),
    ("stalled ms", "stall_ms", 0),
)
#: where no terminal tells its width
WIDE = 140
#: which of a load's groups stands in the table, where it is not all of its streams
SHOWN = {"hol1": "decoding", "itl": "decoding", "hol2": "short", "smoke": "stream"}
DERIVED: dict[str, str] = {
    "prefill_tok_per_s": "prefill tok/s",
    "decode_tok_per_s": "decode tok/s",
    "long_ttft_ms": "long prompt's TTFT ms",
    "long_e2el_ms": "long prompt's whole time ms",
    "short_alone_ttft_mean_ms": "shorts alone, mean TTFT ms",
    "short_ttft_mean_ms": "shorts behind it, mean TTFT ms",
    "short_ttft_ratio": "shorts behind it / alone",
}


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


def show(results: Results, out: TextIO | None = None, *, width: int | None = None) -> None:
    """Print it."""
    console = Console(file=out, width=width, highlight=False)
    if width is None and not console.is_terminal:
        console.width = WIDE
    place = f" on {results.host}" if results.host else ""
    console.print(f"[bold]{results.name}[/]{place}, measured from the {results.measured_from}")
    if results.sandbox:
        console.print("the sandbox: a pretend Spark, these are figures of nothing real", style="yellow")
    _arms(console, results)
    console.print(_figures(results))
    for line in [*extras(results), *verdicts(results)]:
        console.print(line, markup=False)


def _arms(console: Console, results: Results) -> None:
    for arm in results.arms:
        if arm.refused is not None:
            console.print(
                f"arm {arm.name} ({arm.title}): not started: {arm.refused.sentence}", style="red", markup=False
            )
        elif arm.failed:
            console.print(f"arm {arm.name} ({arm.title}): failed: {arm.failed}", style="red", markup=False)
        elif len(results.arms) > 1:
            console.print(f"arm {arm.name}: {arm.title}{effective_words(arm.effective)}", markup=False)


def effective_words(effective: dict[str, Any] | None) -> str:
    """What the log says of an arm's chunked prefill and prefix caching."""
    if not effective:
        return " (its log was not read)"
    words = {True: "on", False: "off", None: "unknown"}
    chunked, prefix = (words[effective.get(name)] for name in ("chunked_prefill", "prefix_caching"))
    return f" (its log: chunked prefill {chunked}, prefix caching {prefix})"


def _figures(results: Results) -> Table:
    found = rows(results)
    names = [one for one in FIGURES if any(row.median(one[1]) is not None for row in found)]
    many = len({row.arm for row in found}) > 1
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in ("LOAD", *(("ARM",) if many else ()), *(("RUNS",) if any(len(r.cells) > 1 for r in found) else ())):
        table.add_column(title, justify="left", no_wrap=True)
    for title, _, _ in names:
        table.add_column(title, justify="right")
    for row in found:
        start = [row.words, *([row.arm] if many else [])]
        start += [str(len(row.cells))] if any(len(r.cells) > 1 for r in found) else []
        table.add_row(*start, *(number(figure(row, name), digits) for _, name, digits in names))
    return table


def figure(row: Row, name: str) -> float | None:
    """What a table shows of it: the worst gap of all repetitions, the median of everything else."""
    return row.worst_gap_ms if name == "largest_gap_ms" else row.median(name)


def number(value: float | None, digits: int) -> str:
    """A figure for people; what is not known is a dash."""
    return "-" if value is None else f"{value:,.{digits}f}"


def extras(results: Results) -> Iterable[str]:
    """The figures that only one kind of load has."""
    for row in rows(results):
        told = [(title, row.derived(name)) for name, title in DERIVED.items()]
        parts = [
            f"{title} {number(value, 2 if 'alone' in title and '/' in title else 1)}" for title, value in told if value
        ]
        if parts:
            yield f"{row.words}, arm {row.arm}: {'; '.join(parts)}"
    yield from results.notes


def verdicts(results: Results) -> Iterable[str]:
    """Cells that prove nothing, and why."""
    for cell in results.cells:
        if cell.verdict in ("inconclusive", "failed"):
            why = "; ".join([*cell.doubts, *cell.notes]) or "no stream ended well"
            yield f"{cell.verdict}: {load_words(cell.load)}, arm {cell.arm}: {why}"


def pair(results: Results) -> Sequence[str]:
    """The names of the two arms that are held against each other; empty when there are not two."""
    names = list(dict.fromkeys(cell.arm for cell in results.cells))
    return names if len(names) == 2 else ()
