"""The page of an experiment, with a table for each chart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from pathlib import Path

from sparkwright.bench import compare, results_file, summary
from sparkwright.bench.axis import format_value
from sparkwright.bench.results_file import Arm, Results, build_rows, describe_load
from sparkwright.bench.summary import format_number
from sparkwright.host.state import write_atomically
from sparkwright.html import plot
from sparkwright.html.page import render
from sparkwright.html.plot import Chart, Line

#: flag for the chunk size, which sweeps of earlier versions varied
BUDGET_FLAG = "max-num-batched-tokens"
#: charts of a sweep: title, name in `Figures`, unit
SWEEP_CHARTS = (
    ("Throughput", "output_tok_per_s", "tok/s"),
    ("TTFT p50", "ttft_p50_ms", "ms"),
    ("ITL p99", "itl_p99_ms", "ms"),
)
#: charts by depth: key, title, name of the figure, unit, divisor and description
DEPTH_CHARTS = (
    ("rate", "Decode rate", "stream_tok_per_s", "tok/s", 1.0, "Median decode rate of a stream."),
    ("ttft", "TTFT", "ttft_max_ms", "s", 1000.0, "The longest time to a first token."),
    ("memory", "Memory", "lowest_available_gib", "GiB", 1.0, "The host's lowest MemAvailable during the load."),
)


def write_page(folder: Path, results: Results) -> str:
    """Write the page to the results' folder and return its name."""
    write_atomically(folder / results_file.PAGE_FILE, render_page(results).encode(), mode=0o644)
    return results_file.PAGE_FILE


def render_page(results: Results) -> str:
    return render(
        "experiment_page.html.j2",
        results=results,
        subtitle=_format_subtitle(results),
        notes=[*summary.extra_lines(results), *summary.problem_lines(results)],
        table=_table_rows(results),
        differences=compare.compare_arms(results),
        sides=results.measured_arms,
        number=summary.format_number,
        charts=[(chart, plot.render_chart(chart)) for chart in build_charts(results)],
        effective=_format_effective,
    )


def _format_subtitle(results: Results) -> str:
    host_clause = f"on {results.host}, " if results.host else ""
    return f"{results.experiment} {host_clause}{summary.MEASURED_FROM[results.measured_from]}, {results.created_at}"


def _table_rows(results: Results) -> list[list[str]]:
    """Return the rows of the table that the terminal shows, header first."""
    titles, rows = summary.figure_rows(results)
    body = [[row.description, row.arm, str(len(row.cells)), *cells] for row, cells in rows]
    return [["Load", "Arm", "Runs", *titles], *body]


def _format_effective(arm: Arm) -> str:
    return ", ".join(summary.format_switches(arm.effective)) if arm.effective else "not read"


def build_charts(results: Results) -> list[Chart]:
    """Return the charts for which an experiment has figures."""
    return [
        *_sweep_charts(results),
        *_gap_charts(results),
        *_head_of_line_charts(results),
        *_throughput_charts(results),
        *_depth_charts(results),
    ]


def _sweep_charts(results: Results) -> Iterator[Chart]:
    """Yield charts of each load against the swept flag, or a heat map of each load over two swept flags."""
    if results.experiment != "sweep":
        return
    axes = list(dict.fromkeys(flag for arm in results.arms for flag in arm.at))
    for title, name, unit in SWEEP_CHARTS:
        if len(axes) == 2:
            yield from _heat_map_charts(results, axes, title, name, unit)
            continue
        swept_flag = axes[0] if axes and axes[0] != BUDGET_FLAG else "max_num_batched_tokens"
        positions = _arm_positions(results, axes)
        lines = _build_lines((row.description, positions.get(row.arm), row.figure(name)) for row in build_rows(results))
        if lines:
            categories = () if _has_numeric_values(results, axes) else tuple(_swept_values(results, axes[0]))
            yield Chart(
                f"sweep-{name}",
                f"{title} against {'chunk size' if swept_flag == 'max_num_batched_tokens' else swept_flag}",
                f"{title} of each load for each {swept_flag}; medians over repetitions.",
                swept_flag,
                f"{title}, {unit}",
                lines,
                kind="bars" if categories else "lines",
                log_x=not categories and min(positions.values(), default=0) > 0,
                categories=categories,
                table=_build_table(swept_flag, lines, unit, categories),
            )


def _has_numeric_values(results: Results, axes: Sequence[str]) -> bool:
    values = [arm.at[name] for arm in results.arms for name in axes[:1] if name in arm.at]
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _swept_values(results: Results, name: str) -> list[str]:
    """Return the values of a swept flag in order, in command line syntax."""
    return list(dict.fromkeys(format_value(arm.at[name]) for arm in results.arms if name in arm.at))


def _arm_positions(results: Results, axes: Sequence[str]) -> dict[str, float]:
    """Return the x position of each arm: the value of its flag if all values are numbers, otherwise the value's index."""
    if not axes:
        return {arm.name: arm.max_num_batched_tokens for arm in results.arms if arm.max_num_batched_tokens}
    name = axes[0]
    if _has_numeric_values(results, axes):
        return {arm.name: float(arm.at[name]) for arm in results.arms if name in arm.at}
    swept_values = _swept_values(results, name)
    return {arm.name: float(swept_values.index(format_value(arm.at[name]))) for arm in results.arms if name in arm.at}


def _heat_map_charts(results: Results, axes: Sequence[str], title: str, name: str, unit: str) -> Iterator[Chart]:
    """Yield a heat map of each load over two swept flags, with the first flag's values as rows and the second's as columns."""
    row_values, column_values = (_swept_values(results, axis) for axis in axes)
    for load_number, load_text in enumerate(dict.fromkeys(row.description for row in build_rows(results))):
        points_by_value: dict[str, list[tuple[float, float]]] = {value: [] for value in row_values}
        for row in build_rows(results):
            arm_values, figure = results.arm(row.arm).at, row.figure(name)
            if row.description == load_text and figure is not None and all(axis in arm_values for axis in axes):
                points_by_value[format_value(arm_values[axes[0]])].append(
                    (float(column_values.index(format_value(arm_values[axes[1]]))), figure)
                )
        lines = tuple(Line(value, tuple(sorted(points))) for value, points in points_by_value.items())
        if any(line.points for line in lines):
            body = ((line.name, *_format_cells(line, len(column_values))) for line in lines)
            yield Chart(
                f"grid-{load_number}-{name}",
                f"{title} over {axes[0]} and {axes[1]}, {load_text}",
                f"{title} of {load_text}, {unit}; medians over repetitions. Empty cells were not started or failed.",
                axes[1],
                axes[0],
                lines,
                kind="heat",
                categories=tuple(column_values),
                table=((f"{axes[0]}, {unit}", *(f"{axes[1]} {value}" for value in column_values)), *body),
            )


def _format_cells(line: Line, count: int) -> tuple[str, ...]:
    return tuple(format_number(dict(line.points).get(float(column)), 1) for column in range(count))


def _gap_charts(results: Results) -> Iterator[Chart]:
    """Yield the charts of ITL over time, by arm, for each load whose gaps are stored."""
    load_texts = dict.fromkeys(describe_load(cell.load) for cell in results.cells if cell.series)
    for n, load_text in enumerate(load_texts):
        lines: dict[str, Line] = {}
        for cell in results.cells:
            if cell.series and describe_load(cell.load) == load_text and cell.arm not in lines:
                series = cell.series[0]
                points = tuple(zip(series.at_s, series.gap_ms, strict=True))
                lines[cell.arm] = Line(_format_arm(results, cell.arm), points, tuple(series.long_at_s))
        yield Chart(
            f"itl-{n}",
            f"Gaps over time, {load_text}",
            "Every gap between two chunks of one decoding stream, in the first repetition of each arm. The vertical lines "
            "mark the arrival of long prompts.",
            "seconds",
            "gap, ms",
            tuple(lines.values()),
            kind="dots",
            log_y=True,
            table=_build_gap_table(lines.values()),
        )


def _build_gap_table(lines: Iterable[Line]) -> tuple[tuple[str, ...], ...]:
    """Return a table of the largest gaps, because a table of all gaps would have thousands of rows."""
    head = ("arm", "gaps", "median ms", "the five largest, ms (at s)")
    rows = []
    for line in lines:
        gaps = sorted(gap for _, gap in line.points)
        largest_gaps = sorted(line.points, key=lambda point: -point[1])[:5]
        largest_text = ", ".join(f"{gap:.0f} ({at_s:.2f})" for at_s, gap in largest_gaps)
        rows.append((line.name, str(len(gaps)), f"{gaps[len(gaps) // 2]:.1f}" if gaps else "-", largest_text))
    return (head, *rows)


def _head_of_line_charts(results: Results) -> Iterator[Chart]:
    """Yield the charts of a long prompt's effect on other streams, by arm."""
    yield from _bar_charts(
        results,
        "hol1",
        "H1: streams that decode when a long prompt arrives",
        "Largest gap of any stream, and the total time of all stalls (gaps over five times the usual one).",
        {"largest gap": "largest_gap_ms", "stalled": "stall_ms"},
        "ms",
    )
    yield from _bar_charts(
        results,
        "hol2",
        "H2: short prompts right behind a long one",
        "Mean time to the first token of the short prompts, alone and behind the long prompt, and that of the long prompt.",
        {
            "short prompts alone": "short_alone_ttft_mean_ms",
            "short prompts behind the long one": "short_ttft_mean_ms",
            "long prompt": "long_ttft_ms",
        },
        "TTFT, ms",
    )


def _bar_charts(
    results: Results, kind: str, title: str, caption: str, figures: dict[str, str], unit: str
) -> Iterator[Chart]:
    """Yield a bar chart for a kind of load, with a group of bars for each arm."""
    rows = [row for row in build_rows(results) if row.load.get("kind") == kind]
    if rows:
        arms = tuple(_format_arm(results, row.arm) for row in rows)
        values = {name: [row.figure(figure) for row in rows] for name, figure in figures.items()}
        lines = (
            Line(name, tuple((float(n), value) for n, value in enumerate(arm_values) if value is not None))
            for name, arm_values in values.items()
        )
        body = zip(arms, *(map(format_number, arm_values, repeat(0)) for arm_values in values.values()), strict=True)
        table = (("arm", *(f"{name}, ms" for name in values)), *body)
        yield Chart(kind, title, caption, "", unit, tuple(lines), kind="bars", categories=arms, table=table)


def _throughput_charts(results: Results) -> Iterator[Chart]:
    """Yield the charts of the total throughput by number of streams or arrival rate."""
    for name, x_title in (("concurrency", "requests at a time"), ("rate", "arrivals, requests/s")):
        serve_rows = [row for row in build_rows(results) if row.load.get("kind") == "serve" and row.load.get(name)]
        for figure, title, y_title in (
            ("output_tok_per_s", "Throughput", "output, tok/s"),
            ("ttft_p50_ms", "TTFT p50", "TTFT p50, ms"),
        ):
            lines = _build_lines(
                (_format_arm(results, row.arm), float(row.load[name]), row.figure(figure)) for row in serve_rows
            )
            if any(len(line.points) > 1 for line in lines):
                yield Chart(
                    f"serve-{name}-{figure}",
                    f"{title} against {'concurrency' if name == 'concurrency' else 'rate'}",
                    f"{title} of all requests together; medians over repetitions.",
                    x_title,
                    y_title,
                    lines,
                    log_x=name == "concurrency",
                    table=_build_table(x_title, lines, y_title.rsplit(", ", 1)[-1]),
                )


def _depth_charts(results: Results) -> Iterator[Chart]:
    """Yield the charts of decode rate, time to first token and memory by prompt length."""
    rows = [row for row in build_rows(results) if row.load.get("kind") == "depth"]
    x_title = "tokens of the prompt"
    for key, title, name, unit, divisor, caption in DEPTH_CHARTS:
        points = []
        for row in rows:
            streams, value = row.load.get("concurrency"), row.figure(name)
            label = (
                f"{_format_arm(results, row.arm)}, {streams} at once" if len(results.arms) > 1 else f"{streams} at once"
            )
            points.append((label, float(row.load["prompt_tokens"]), None if value is None else value / divisor))
        lines = _build_lines(points)
        if lines:
            table = _build_table(x_title, lines, unit)
            yield Chart(
                f"depth-{key}",
                f"{title} against depth",
                caption,
                x_title,
                f"{title}, {unit}",
                lines,
                log_x=True,
                table=table,
            )


def _build_lines(values: Iterable[tuple[str, float | None, float | None]]) -> tuple[Line, ...]:
    """Return lines from (name, x, y), leaving out points without a value."""
    points: dict[str, list[tuple[float, float]]] = {}
    for name, x, y in values:
        if x is not None and y is not None:
            points.setdefault(name, []).append((x, y))
    return tuple(Line(name, tuple(sorted(pairs))) for name, pairs in points.items())


def _format_arm(results: Results, name: str) -> str:
    title = results.arm(name).title
    return f"{name}: {title}" if title and title != name else name


def _build_table(
    x_title: str, lines: tuple[Line, ...], unit: str, names: Sequence[str] = ()
) -> tuple[tuple[str, ...], ...]:
    """Return a table with a column for each line, and a row for each x, labelled with its value or, if given, names[x]."""
    positions = sorted({position for line in lines for position, _ in line.points})
    labels = dict(enumerate(names)) if names else {position: f"{position:g}" for position in positions}
    points = [dict(line.points) for line in lines]
    body = ((label, *(format_number(line.get(position), 1) for line in points)) for position, label in labels.items())
    return ((x_title, *(f"{line.name}, {unit}" for line in lines)), *body)
