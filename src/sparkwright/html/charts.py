"""The plots of an experiment as data: lines or bars with their names and units. A page shows each as a picture and as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from sparkwright.bench.results_models import Results
from sparkwright.bench.rows import Row, load_words, rows

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Line:
    """name: in the legend. points: (x, y). marks: x of what happened meanwhile."""

    name: str
    points: Points
    marks: tuple[float, ...] = ()


@dataclass(frozen=True)
class Chart:
    """One plot. what: one sentence on how to read it. log_x: sizes that double. dots: single points, no line between them.

    bars: names of groups, then each line's points are (group, value). table: of the plot's own figures, head first.
    """

    key: str
    title: str
    what: str
    x: str
    y: str
    lines: tuple[Line, ...]
    kind: Literal["lines", "dots", "bars"] = "lines"
    log_x: bool = False
    log_y: bool = False
    bars: tuple[str, ...] = ()
    table: tuple[tuple[str, ...], ...] = field(default=())


def of(results: Results) -> list[Chart]:
    """The charts that these results can fill."""
    return [*_sweep(results), *_gaps(results), *_head_of_line(results), *_throughput(results)]


# -- against the size of a step -----------------------------------------------------------------------------------------------


def _sweep(results: Results) -> Iterator[Chart]:
    """TTFT p50 and ITL p99 of each load against max_num_batched_tokens."""
    if results.experiment != "sweep":
        return
    for name, title in (("ttft_p50_ms", "TTFT p50"), ("itl_p99_ms", "ITL p99")):
        lines = _by_size(results, name)
        if lines:
            yield Chart(
                f"sweep-{name}",
                f"{title} against chunk size",
                f"{title} of each load for each max_num_batched_tokens; medians over repetitions.",
                "max_num_batched_tokens",
                f"{title}, ms",
                lines,
                log_x=True,
                table=_table("max_num_batched_tokens", lines, "ms"),
            )


def _by_size(results: Results, name: str) -> tuple[Line, ...]:
    found: dict[str, list[tuple[float, float]]] = {}
    for row in rows(results):
        size, value = results.arm(row.arm).max_num_batched_tokens, row.median(name)
        if size is not None and value is not None:
            found.setdefault(row.words, []).append((size, value))
    return tuple(Line(words, tuple(sorted(points))) for words, points in found.items())


# -- over time ----------------------------------------------------------------------------------------------------------------


def _gaps(results: Results) -> Iterator[Chart]:
    """ITL over time of each arm, for each load that keeps gaps."""
    for words in dict.fromkeys(load_words(cell.load) for cell in results.cells if cell.series):
        lines = []
        for arm in dict.fromkeys(cell.arm for cell in results.cells):
            cell = next(
                (one for one in results.cells if one.arm == arm and one.series and load_words(one.load) == words), None
            )
            if cell is not None:
                one = cell.series[0]
                points = tuple(zip(one.at_s, one.gap_ms, strict=True))
                lines.append(Line(_arm(results, arm), points, tuple(one.long_at_s)))
        yield Chart(
            f"itl-{len(words)}-{words.split()[0].strip(':').lower()}",
            f"Gaps over time, {words}",
            "Every gap between two chunks of one stream that decodes, the first repetition of each arm; the upright lines "
            "are where long prompts arrive.",
            "seconds",
            "gap, ms",
            tuple(lines),
            kind="dots",
            log_y=True,
            table=_gap_table(lines),
        )


def _gap_table(lines: list[Line]) -> tuple[tuple[str, ...], ...]:
    """The largest gaps: thousands of rows would be no table."""
    head = ("arm", "gaps", "median ms", "the five largest, ms (at s)")
    found = []
    for line in lines:
        gaps = sorted(gap for _, gap in line.points)
        largest = sorted(line.points, key=lambda point: -point[1])[:5]
        message = ", ".join(f"{gap:.0f} ({at:.2f})" for at, gap in largest)
        found.append((line.name, str(len(gaps)), f"{gaps[len(gaps) // 2]:.1f}" if gaps else "-", message))
    return (head, *found)


# -- head of line ---------------------------------------------------------------------------------------------------------------


def _head_of_line(results: Results) -> Iterator[Chart]:
    """What a long prompt costs the others, arm by arm."""
    h1 = [row for row in rows(results) if row.load["kind"] == "hol1"]
    if h1:
        arms = tuple(_arm(results, row.arm) for row in h1)
        yield _bars(
            "hol1",
            "H1: streams that decode when a long prompt arrives",
            "Largest gap of any stream, and the time of all stalls together (gaps over five times the usual one).",
            arms,
            (("largest gap", [row.worst_gap_ms for row in h1]), ("stalled", [row.median("stall_ms") for row in h1])),
            "ms",
        )
    h2 = [row for row in rows(results) if row.load["kind"] == "hol2"]
    if h2:
        yield _bars(
            "hol2",
            "H2: short prompts right behind a long one",
            "Mean time to the first token of the short prompts, alone and behind the long one, and the long one's own.",
            tuple(_arm(results, row.arm) for row in h2),
            (
                ("shorts alone", [row.derived("short_alone_ttft_mean_ms") for row in h2]),
                ("shorts behind it", [row.derived("short_ttft_mean_ms") for row in h2]),
                ("the long one", [row.derived("long_ttft_ms") for row in h2]),
            ),
            "TTFT, ms",
        )


def _bars(
    key: str,
    title: str,
    what: str,
    arms: tuple[str, ...],
    values: tuple[tuple[str, list[float | None]], ...],
    unit: str,
) -> Chart:
    lines = tuple(
        Line(name, tuple((float(n), value) for n, value in enumerate(found) if value is not None))
        for name, found in values
    )
    head = ("arm", *(f"{name}, ms" for name, _ in values))
    body = [
        (arm, *("-" if found[n] is None else f"{found[n]:,.0f}" for _, found in values)) for n, arm in enumerate(arms)
    ]
    return Chart(key, title, what, "", unit, lines, kind="bars", bars=arms, table=(head, *body))


# -- throughput -----------------------------------------------------------------------------------------------------------------


def _throughput(results: Results) -> Iterator[Chart]:
    """tok/s of all streams together against how many there are, or against the rate of arrivals."""
    for name, x in (("concurrency", "requests at a time"), ("rate", "arrivals, requests/s")):
        serve = [row for row in rows(results) if row.load["kind"] == "serve" and row.load.get(name)]
        for figure, title, y in (
            ("output_tok_per_s", "Throughput", "output, tok/s"),
            ("ttft_p50_ms", "TTFT p50", "TTFT p50, ms"),
        ):
            lines = _by_arm(results, serve, name, figure)
            if any(len(line.points) > 1 for line in lines):
                yield Chart(
                    f"serve-{name}-{figure}",
                    f"{title} against {'concurrency' if name == 'concurrency' else 'rate'}",
                    f"{title} of all requests together; medians over repetitions.",
                    x,
                    y,
                    lines,
                    log_x=name == "concurrency",
                    table=_table(x, lines, y.rsplit(", ", 1)[-1]),
                )


def _by_arm(results: Results, found: list[Row], name: str, figure: str) -> tuple[Line, ...]:
    points: dict[str, list[tuple[float, float]]] = {}
    for row in found:
        value = row.median(figure)
        if value is not None:
            points.setdefault(row.arm, []).append((float(row.load[name]), value))
    return tuple(Line(_arm(results, arm), tuple(sorted(pairs))) for arm, pairs in points.items())


# -- shared ---------------------------------------------------------------------------------------------------------------------


def _arm(results: Results, name: str) -> str:
    title = results.arm(name).title
    return f"{name}: {title}" if title and title != name else name


def _table(x: str, lines: tuple[Line, ...], unit: str) -> tuple[tuple[str, ...], ...]:
    """A row an x, a column a line."""
    every = sorted({at for line in lines for at, _ in line.points})
    body = []
    for at in every:
        values = [dict(line.points).get(at) for line in lines]
        body.append((f"{at:g}", *("-" if value is None else f"{value:,.1f}" for value in values)))
    return ((x, *(f"{line.name}, {unit}" for line in lines)), *body)
