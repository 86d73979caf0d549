"""Print results as a table, followed by conclusions. A row combines all repetitions of a load on an arm."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sparkwright.bench import compare
from sparkwright.bench.compare import Difference
from sparkwright.bench.results_file import Cell, Results, Row, build_rows, describe_load
from sparkwright.console.command_output import wrap_sentence
from sparkwright.console.terminal import build_console

#: columns, as (title, name in `Figures`, decimal places)
FIGURE_COLUMNS: tuple[tuple[str, str, int], ...] = (
    ("tok/s", "output_tok_per_s", 1),
    ("tok/s per stream", "stream_tok_per_s", 1),
    ("TTFT p50 ms", "ttft_p50_ms", 0),
    ("TTFT p99 ms", "ttft_p99_ms", 0),
    ("ITL p50 ms", "itl_p50_ms", 1),
    ("ITL p99 ms", "itl_p99_ms", 1),
    ("largest gap ms", "largest_gap_ms", 0),
    ("stalls", "stalls", 0),
    ("stalled ms", "stall_ms", 0),
    ("lowest available GiB", "lowest_available_gib", 1),
)
MEASURED_FROM = {"host": "measured on the host", "laptop": "measured from this machine", "import": "imported"}
#: width in a pipe, wider than any line, so that nothing is wrapped or truncated
PIPE_WIDTH = 10_000
#: minimum width of the loads, arms and runs of a table whose last figures are dropped
MIN_LEADING_WIDTH = 30
#: maximum length of a side's name as a column title; longer names are printed above the table
MAX_SIDE_CHARS = 12
#: minimum width of a figure's name next to its values
MIN_FIGURE_WIDTH = 8
DERIVED_TITLES: dict[str, str] = {
    "prefill_tok_per_s": "prefill tok/s",
    "decode_tok_per_s": "decode tok/s",
    "long_ttft_ms": "long prompt's TTFT ms",
    "chunks_meanwhile": "chunks of a stream during the long prefill",
    "long_e2el_ms": "long prompt's total time ms",
    "short_alone_ttft_mean_ms": "short prompts alone, mean TTFT ms",
    "short_ttft_mean_ms": "short prompts behind the long one, mean TTFT ms",
    "short_ttft_ratio": "short prompts behind the long one / alone",
    "accepted_per_draft": "tokens accepted per draft",
    "accepted_first": "share accepted at the first position",
}
MARKDOWN_HEADER = (
    "| model | test | t/s | ttfr (ms) | est_ppt (ms) | e2e_ttft (ms) |",
    "|:------|-----:|----:|----------:|-------------:|--------------:|",
)


def print_results(results: Results, out: TextIO | None = None, *, width: int | None = None) -> None:
    console = _build_console(out, width)
    host_suffix = f" on {results.host}" if results.host else ""
    console.print(Text.assemble((results.name, "bold"), f"{host_suffix}, {MEASURED_FROM[results.measured_from]}"))
    if results.sandbox:
        console.print("the sandbox: simulated figures, not real measurements", style="yellow")
    _print_arms(console, results)
    if results.cells:
        console.print(_figure_table(results, console.width))
    for line in [*extra_lines(results), *problem_lines(results)]:
        console.print(line)
    differences = compare.compare_arms(results)
    if differences:
        first, second = results.measured_arms
        console.print()
        print_differences(differences, first, second, out, width=width)


def _print_arms(console: Console, results: Results) -> None:
    for arm in results.arms:
        if arm.refused is not None:
            console.print(f"arm {arm.name} ({arm.title}): not started: {arm.refused.sentence}", style="red")
        elif arm.failed:
            console.print(f"arm {arm.name} ({arm.title}): failed: {arm.failed}", style="red")
        elif len(results.arms) > 1:
            log_description = "its log was not read"
            if arm.effective:
                log_description = "its log: chunked prefill {}, prefix caching {}".format(
                    *format_switches(arm.effective)
                )
            console.print(f"arm {arm.name}: {arm.title} ({log_description})")


def format_switches(logged_settings: dict[str, Any]) -> tuple[str, ...]:
    """Return whether an arm's chunked prefill and prefix caching are on, according to its log."""
    words = {True: "on", False: "off", None: "unknown"}
    return tuple(words[logged_settings.get(name)] for name in ("chunked_prefill", "prefix_caching"))


def figure_rows(results: Results) -> tuple[list[str], list[tuple[Row, list[str]]]]:
    """Return the titles of the figures that any row has, and the rows with their values."""
    rows = build_rows(results)
    columns = [figure for figure in FIGURE_COLUMNS if any(row.values(figure[1]) for row in rows)]
    value_texts = [[format_number(row.figure(name), digits) for _, name, digits in columns] for row in rows]
    return [title for title, _, _ in columns], list(zip(rows, value_texts, strict=True))


def _figure_table(results: Results, max_width: int) -> Table:
    """Return the table of figures. If it is too wide, titles are wrapped at words, and then the last figures are dropped."""
    titles, rows = figure_rows(results)
    leading_columns: dict[str, Callable[[Row], str]] = {"LOAD": lambda row: row.description}
    if len({row.arm for row, _ in rows}) > 1:
        leading_columns["ARM"] = lambda row: row.arm
    if any(len(row.cells) > 1 for row, _ in rows):
        leading_columns["RUNS"] = lambda row: str(len(row.cells))
    leading_rows = [[format_cell(row) for format_cell in leading_columns.values()] for row, _ in rows]
    leading_width = sum(map(_max_chars, leading_columns, zip(*leading_rows, strict=True))) + 2 * len(leading_columns)
    value_columns = list(zip(titles, zip(*(texts for _, texts in rows), strict=True), strict=True))
    widths = [_max_chars(title, values) for title, values in value_columns]
    if leading_width + sum(widths) + 2 * len(widths) > max_width:
        widths = [max(_max_chars(word, values) for word in title.split()) for title, values in value_columns]
    while len(widths) > 1 and min(leading_width, MIN_LEADING_WIDTH) + sum(widths) + 2 * len(widths) > max_width:
        widths.pop()
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title in leading_columns:
        table.add_column(title, overflow="fold")
    for title, width in zip(titles, widths, strict=False):
        table.add_column(title, justify="right", overflow="fold", width=width)
    for cells, (_, value_texts) in zip(leading_rows, rows, strict=True):
        table.add_row(*cells, *value_texts[: len(widths)])
    return table


def _max_chars(title: str, values: Iterable[str]) -> int:
    return max(len(title), *map(len, values))


def format_number(value: float | None, digits: int) -> str:
    """Return a figure as text, or a dash if it is unknown."""
    return "-" if value is None else f"{value:,.{digits}f}"


def extra_lines(results: Results) -> Iterable[str]:
    """Yield lines for figures that only one kind of load has."""
    for row in build_rows(results):
        digits = {name: 2 if name.endswith("ratio") or name.startswith("accepted") else 1 for name in DERIVED_TITLES}
        reported = {title: (row.figure(name), digits[name]) for name, title in DERIVED_TITLES.items()}
        parts = [f"{title} {format_number(value, digits)}" for title, (value, digits) in reported.items() if value]
        if parts:
            yield f"{row.description}, arm {row.arm}: {'; '.join(parts)}"
        if row.load.get("kind") == "mixed":
            yield f"{row.description}, arm {row.arm}: {'; '.join(_group_lines(row))}"
    yield from _best_lines(results)
    yield from results.notes


def _best_lines(results: Results) -> Iterable[str]:
    """Yield the arm with the highest throughput for each load of a sweep, and the arms that are within noise of it."""
    if results.experiment != "sweep":
        return
    for description in dict.fromkeys(
        row.description for row in build_rows(results) if row.load.get("kind") in ("serve", "smoke")
    ):
        rates = {
            row.arm: row.figure("output_tok_per_s") or 0.0
            for row in build_rows(results)
            if row.description == description
        }
        if len(rates) > 1:
            arm = max(rates, key=lambda name: rates[name])
            arms_within_noise = [
                name for name, rate in rates.items() if name != arm and rate >= rates[arm] * (1 - compare.NOISE_SHARE)
            ]
            noise_note = (
                f"; within {compare.NOISE_SHARE:.0%} of it: {', '.join(arms_within_noise)}" if arms_within_noise else ""
            )
            yield f"{description}: highest throughput with {results.arm(arm).title or arm}, {rates[arm]:,.1f} tok/s{noise_note}"


def _group_lines(row: Row) -> Iterable[str]:
    """Yield the TTFT of long and of short prompts, because a combined figure would hide which of them wait."""
    for group in ("short", "long"):
        group_figures = [cell.groups[group] for cell in row.cells if group in cell.groups]
        if group_figures:
            p50, p99 = (
                max(getattr(figures, name) or 0 for figures in group_figures) for name in ("ttft_p50_ms", "ttft_p99_ms")
            )
            yield f"{group}: TTFT p50 {p50:,.0f} ms, p99 {p99:,.0f} ms"


def problem_lines(results: Results) -> Iterable[str]:
    """Yield the cells that are inconclusive or failed, with the reasons."""
    for cell in results.cells:
        if cell.verdict in ("inconclusive", "failed"):
            reason = "; ".join([*cell.doubts, *cell.notes]) or "no stream succeeded"
            yield f"{cell.verdict}: {describe_load(cell.load)}, arm {cell.arm}: {reason}"


def print_differences(
    differences: Sequence[Difference], first: str, second: str, out: TextIO | None = None, *, width: int | None = None
) -> None:
    """Print the compared figures of two sides in one table, below a line for each load."""
    console = _build_console(out, width)
    if max(len(first), len(second)) > MAX_SIDE_CHARS:
        for line in (f"A: {first}", f"B: {second}"):
            console.print(line)
        first, second = "A", "B"
    titles = ("FIGURE", first, second, f"{second} / {first}", "")
    rows = [
        (
            difference.figure,
            format_number(difference.first, difference.digits),
            format_number(difference.second, difference.digits),
            "-" if difference.ratio is None else f"{difference.ratio:.3f}",
            difference.verdict,
        )
        for difference in differences
    ]
    figure_width, *widths = (max(map(len, column)) for column in zip(titles, *rows, strict=True))
    figure_width = max(MIN_FIGURE_WIDTH, min(figure_width, console.width - sum(widths) - 2 * len(titles)))

    def print_row(row: Sequence[str], style: str) -> None:
        figure, *other_lines = wrap_sentence(row[0], figure_width)
        numbers = "  ".join(f"{cell:>{cell_width}}" for cell, cell_width in zip(row[1:4], widths, strict=False))
        for line in (f"{figure:<{figure_width}}  {numbers}  {row[4]}".rstrip(), *other_lines):
            console.print(f"  {line}", style=style, soft_wrap=True)

    print_row(titles, "dim")
    previous_load = ""
    for difference, row in zip(differences, rows, strict=True):
        if difference.load != previous_load:
            console.print(difference.load)
        print_row(row, {"better": "green", "worse": "red"}.get(difference.verdict, ""))
        previous_load = difference.load


def _build_console(out: TextIO | None, width: int | None) -> Console:
    console = build_console(file=out, width=width)
    if width is None and not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def render_markdown(results: Results) -> str:
    """Return a Markdown table with a pp and a tg row for each measurement of a single stream; empty if there is none.

    The time to the first token is also reported as ttfr. Unlike in llama-benchy, the network latency is not subtracted from it.
    """
    cells = [cell for cell in results.cells if cell.kind == "smoke" and cell.verdict == "measured"]
    rows = [row for cell in cells for row in _markdown_rows(results, cell)]
    return "\n".join([*MARKDOWN_HEADER, *rows]) if rows else ""


def _markdown_rows(results: Results, cell: Cell) -> tuple[str, str]:
    arm = results.arm(cell.arm)
    model = arm.model_id or arm.title or results.name
    derived = cell.derived
    ttft = _format_ms(cell.figures.ttft_mean_ms)
    prompt_tokens, answer_tokens = cell.load["prompt_tokens"], cell.load["output_tokens"]
    return (
        f"| {model} | pp{prompt_tokens} | {_format_mean(derived, 'prefill_tok_per_s')} | {ttft} | {ttft} | {ttft} |",
        f"| {model} | tg{answer_tokens} | {_format_mean(derived, 'decode_tok_per_s')} | | | |",
    )


def _format_mean(derived: dict[str, float], name: str) -> str:
    return f"{derived.get(name, 0):.2f} ± {derived.get(f'{name}_deviation', 0):.2f}"


def _format_ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
