"""Charts as SVG, with matplotlib (the extra `report`). Colours suit colour-blind readers, and lines have markers too."""

from __future__ import annotations

import io
import re
from importlib.util import find_spec
from typing import Any

from sparkwright.html.charts import Chart
from sparkwright.html.page import STYLE_SHEET

COLOURS = re.findall(r"--series\d: (#\w+)", STYLE_SHEET.read_text())
STROKES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
LEAST_MS = 1.0  # smallest gap that is shown: chunks that arrived in one piece have none
SIZE_INCHES = (7.2, 3.6)
STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text stays text, for screen readers, search and copying
    "text.parse_math": False,  # a name with dollar signs is a name
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def available() -> bool:
    return find_spec("matplotlib") is not None


def svg(chart: Chart) -> str:
    """Return the picture of a chart, for inlining into a page."""
    import matplotlib
    from matplotlib.figure import Figure

    style = {**STYLE, "svg.hashsalt": chart.key}
    with matplotlib.rc_context(style):  # type: ignore[arg-type]
        figure = Figure(figsize=SIZE_INCHES, layout="constrained")
        axes = figure.add_subplot()
        _DRAW[chart.kind](axes, chart)
        axes.set_xlabel(chart.x)
        axes.set_ylabel(chart.y)
        if chart.kind != "heat":
            _framed(axes, chart)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return _inlined(out.getvalue(), chart)


def _framed(axes: Any, chart: Chart) -> None:
    """Draw grid, scales and legend of a plot with a numeric y axis."""
    axes.grid(True, axis="y", linewidth=0.4, alpha=0.6)
    if chart.kind != "bars":
        _scales(axes, chart)
    if not chart.log_y:
        axes.set_ylim(0, axes.get_ylim()[1] * 1.05)
    if len(chart.lines) > 1:
        axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3)


def _lines(axes: Any, chart: Chart) -> None:
    for n, line in enumerate(chart.lines):
        xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
        colour, mark, stroke = COLOURS[n % len(COLOURS)], MARKS[n % len(MARKS)], STROKES[n % len(STROKES)]
        axes.plot(xs, ys, color=colour, marker=mark, linestyle=stroke, markersize=5, label=line.name)


def _dots(axes: Any, chart: Chart) -> None:
    for n, line in enumerate(chart.lines):
        colour = COLOURS[n % len(COLOURS)]
        xs, ys = [x for x, _ in line.points], [max(y, LEAST_MS) for _, y in line.points]
        axes.plot(xs, ys, color=colour, marker=MARKS[n % len(MARKS)], markersize=3, linewidth=0.6, label=line.name)
        for mark in line.marks:
            axes.axvline(mark, color=colour, linewidth=0.8, linestyle=":")


def _bars(axes: Any, chart: Chart) -> None:
    wide = 0.8 / max(1, len(chart.lines))
    for n, line in enumerate(chart.lines):
        offset = (n - (len(chart.lines) - 1) / 2) * wide
        places, heights = [x + offset for x, _ in line.points], [y for _, y in line.points]
        style = {"color": COLOURS[n % len(COLOURS)], "hatch": ("", "//", "..")[n % 3], "edgecolor": "white"}
        drawn = axes.bar(places, heights, wide * 0.92, **style, label=line.name)
        axes.bar_label(drawn, fmt="{:,.0f}", fontsize=8, padding=2)
    axes.set_xticks(range(len(chart.bars)), chart.bars)


def _heat(axes: Any, chart: Chart) -> None:
    """Draw a heat map. Each cell shows its figure; a cell without one stays empty."""
    known = [{int(x): y for x, y in line.points} for line in chart.lines]
    rows = [[row.get(column, float("nan")) for column in range(len(chart.bars))] for row in known]
    axes.pcolormesh(rows, cmap="Blues", edgecolor="white")
    axes.invert_yaxis()
    values = [value for row in known for value in row.values()]
    middle = (min(values) + max(values)) / 2
    for y, row in enumerate(known):
        for x, value in row.items():
            colour = "white" if value > middle else "black"
            axes.text(x + 0.5, y + 0.5, f"{value:,.1f}", ha="center", va="center", fontsize=9, color=colour)
    axes.set_xticks([n + 0.5 for n in range(len(chart.bars))], chart.bars)
    axes.set_yticks([n + 0.5 for n in range(len(chart.lines))], [line.name for line in chart.lines])


_DRAW = {"lines": _lines, "dots": _dots, "bars": _bars, "heat": _heat}


def _scales(axes: Any, chart: Chart) -> None:
    xs = sorted({x for line in chart.lines for x, _ in line.points})
    if chart.log_x and xs and xs[0] > 0:
        axes.set_xscale("log", base=2)
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        axes.minorticks_off()
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")


def _inlined(text: str, chart: Chart) -> str:
    """Return only the picture, with ids of its own and a text alternative."""
    body = text[text.index("<svg") :]
    for pattern in (r'(\bid=")', r"(url\(#)", r'(href="#)'):
        body = re.sub(pattern, rf"\g<1>{chart.key}-", body)
    before, _, rest = body.partition("<metadata>")
    body = before + (rest.partition("</metadata>")[2] if rest else "")
    return body.replace("<svg", f'<svg role="img" aria-labelledby="{chart.key}-name"', 1)
