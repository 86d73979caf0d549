"""SVG plots: the charts of an experiment, and a host's measurements and states over time.

Colours are defined in the page's CSS, and are never the only distinction: text, a marker or a stroke pattern is added.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from sparkwright.health.record import severity
from sparkwright.html.checks import Period
from sparkwright.visible import one_line

WIDTH, HEIGHT, BAND_HEIGHT, CHART_HEIGHT = 720, 120, 34, 340
LEFT_MARGIN, RIGHT_MARGIN, TOP_MARGIN, BOTTOM_MARGIN = 60, 8, 26, 18
#: height of a legend row, and height below a chart's axis, in pixels
LEGEND_ROW_HEIGHT, AXIS_HEIGHT = 17, 36
#: width of a character in a label, in pixels
CHARACTER_WIDTH = 6.2
MAX_LEGEND_CHARS = 100
#: a line is interrupted where checks are missing for longer than this many spans (checks.py summarizes checks by span)
MAX_GAP_SPANS = 2.5
HOUR_S, DAY_S = 3600, 86400
#: intervals between time labels, in seconds
LABEL_STEPS_S = (300, 900, 1800, HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S, DAY_S, 2 * DAY_S, 7 * DAY_S, 30 * DAY_S)
MAX_TIME_LABELS = 8
#: number of line colours in the style sheet
COLOUR_COUNT = 7
#: stroke patterns, which lines use in turn
STROKES = ("", "6 3", "6 3 1 3", "1 3")
#: markers, which lines use in turn, as SVG paths relative to the point
MARKERS = (
    "m-2.5,0a2.5,2.5 0 1,0 5,0a2.5,2.5 0 1,0 -5,0",
    "m-2.5,-2.5h5v5h-5z",
    "m0,-3.5l3.5,6h-7z",
    "m0,-3.5l3.5,3.5l-3.5,3.5l-3.5,-3.5z",
    "m0,3.5l3.5,-6h-7z",
    "m-1,-3h2v2h2v2h-2v2h-2v-2h-2v-2h2z",
    "m-3,-2l1,-1l2,2l2,-2l1,1l-2,2l2,2l-1,1l-2,-2l-2,2l-1,-1l2,-2z",
)
#: fill opacities, which the bars of a group use in turn
SHADES = (1, 0.6, 0.3)
#: lower end of a logarithmic scale, because a value can be 0, such as the gap between chunks that arrive together
MIN_LOG_VALUE = 1.0

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    #: name in the legend
    name: str
    #: points as (x, y)
    points: tuple[tuple[float, float], ...]
    #: x values of events, drawn as vertical rules
    event_xs: tuple[float, ...] = ()


@dataclass(frozen=True)
class Chart:
    """A chart of an experiment."""

    #: identifier of the chart, unique on its page
    key: str
    title: str
    #: sentence on how to read the chart
    caption: str
    #: titles of the axes
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    #: `dots` is for points that are joined only by a thin line
    kind: Literal["lines", "dots", "bars", "heat"] = "lines"
    #: True for a logarithmic x axis, e.g. if each value is twice the previous one
    log_x: bool = False
    log_y: bool = False
    #: names of the groups of a bar chart or of the columns of a heat map, whose rows are `lines`. The x of a point is an index
    #: into these names
    categories: tuple[str, ...] = ()
    #: the chart's values as a table, header first
    table: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class TimePlot:
    """The title, scale and style of a plot over time."""

    #: title with the unit
    name: str
    #: top of the scale; None to derive it from the values
    top: float | None = None
    #: name and value of a dashed line; None for no line
    reference: tuple[str, float] | None = None
    #: True to join even measurements that are far apart
    joined: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis with its lowest and highest value, and their positions in pixels."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def position(self, value: float) -> float:
        """Return the position of a value in pixels. A value outside the axis is placed at its end."""
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        value = math.log(max(value, self.low)) if self.log else value
        share = (value - low) / ((high - low) or 1.0)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return about five round values for tick marks."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(powers) < 5 else (1,)
            values = [step * 10.0**power for power in powers for step in steps]
            return [value for value in values if self.low <= value <= self.high]
        step = _round_up((self.high - self.low) / 5)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]


def render_chart(chart: Chart) -> str:
    """Return a chart as SVG, for inlining into a page in which `KEY-name` is the id of the chart's heading."""
    legend, rows = _draw_legend(chart) if chart.kind != "heat" and len(chart.lines) > 1 else ([], 0)
    top, axis_y = TOP_MARGIN + rows * LEGEND_ROW_HEIGHT, CHART_HEIGHT - AXIS_HEIGHT
    parts = [_draw_text(0, 11, chart.y_title, "name"), *legend]
    if chart.kind == "heat":
        parts += _draw_heat_map(chart, top, axis_y)
    else:
        values = [y for line in chart.lines for _, y in line.points]
        high = max(values, default=1.0)
        low = max(min(values, default=MIN_LOG_VALUE), MIN_LOG_VALUE) if chart.log_y else 0.0
        y = Scale(low, max(high, 2 * low) if chart.log_y else _round_up(high * 1.05), axis_y, top, chart.log_y)
        parts += _draw_grid(y, y.ticks())
        parts += _draw_bars(chart, y) if chart.kind == "bars" else _draw_lines(chart, y)
    parts.append(_draw_text((LEFT_MARGIN + WIDTH - RIGHT_MARGIN) / 2, CHART_HEIGHT - 6, chart.x_title, "label middle"))
    return _wrap_svg(parts, CHART_HEIGHT, f'aria-labelledby="{escape(chart.key)}-name"')


def time_axis(since_s: float, until_s: float) -> Scale:
    """Return a time axis, in seconds since the epoch."""
    return Scale(since_s, max(until_s, since_s + 1), LEFT_MARGIN, WIDTH - RIGHT_MARGIN)


def render_time_series(plot: TimePlot, points: Points, x: Scale, span_s: float, label: str) -> str:
    """Return a line plot.

    Args:
        points: points as (seconds since the epoch, value).
        span_s: length of a span; the line is interrupted where points are missing for more than MAX_GAP_SPANS spans.
        label: alternative text for screen readers.
    """
    values = [value for _, value in points] + ([plot.reference[1]] if plot.reference else [])
    y = Scale(0.0, plot.top or _round_up(max(values, default=1.0) * 1.1), HEIGHT - BOTTOM_MARGIN, TOP_MARGIN)
    parts = [
        _draw_text(0, 11, plot.name, "name"),
        *_draw_grid(y, [y.high * share for share in (0, 0.5, 1)]),
        *_draw_time_labels(x, y.start),
    ]
    if plot.reference:
        parts.append(
            _draw_rule(
                "reference",
                LEFT_MARGIN,
                y.position(plot.reference[1]),
                WIDTH - RIGHT_MARGIN,
                y.position(plot.reference[1]),
            )
        )
        parts.append(
            _draw_text(WIDTH - RIGHT_MARGIN, y.position(plot.reference[1]) - 3, plot.reference[0], "label end")
        )
    for piece in _split_at_gaps(points, math.inf if plot.joined else MAX_GAP_SPANS * span_s):
        parts.append(_draw_polyline("line", piece, x, y))
        if plot.joined or len(piece) == 1:
            parts += [
                f'<circle class="dot" cx="{x.position(time_s):.1f}" cy="{y.position(value):.1f}" r="2"/>'
                for time_s, value in piece
            ]
    if not points:
        parts.append(_draw_text(LEFT_MARGIN + 8, (y.start + y.end) / 2, "unknown", "label"))
    return _wrap_svg(parts, HEIGHT, f'aria-label="{escape(label)}"')


def render_states(periods: Sequence[Period], x: Scale, label: str) -> str:
    """Return a band that shows the states as colours, worse states on top, with gaps where the state is unknown."""
    frame = f'x="{LEFT_MARGIN}" y="16" width="{WIDTH - LEFT_MARGIN - RIGHT_MARGIN}" height="{BAND_HEIGHT - 18}"'
    parts = [_draw_text(0, 11, "state", "name"), f'<rect class="nothing" {frame}><title>unknown</title></rect>']
    for period in sorted(periods, key=lambda period: severity(period.state)):
        start, end = x.position(period.start_s), x.position(period.end_s)
        shape = f'x="{start:.1f}" y="16" width="{max(1.0, end - start):.1f}" height="{BAND_HEIGHT - 18}"'
        state = escape(period.state)
        parts.append(f'<rect class="state {state}" {shape}><title>{state}</title></rect>')
    return _wrap_svg(parts, BAND_HEIGHT, f'aria-label="{escape(label)}"')


def _draw_lines(chart: Chart, y: Scale) -> list[str]:
    """Draw lines, or dots joined by thin lines, and a vertical rule for each event."""
    xs = sorted({x for line in chart.lines for x, _ in line.points})
    log = chart.log_x and bool(xs) and xs[0] > 0
    low, high = (xs[0], xs[-1]) if xs else (0.0, 1.0)
    x = Scale(low, high if high > low else low + 1, LEFT_MARGIN + 12, WIDTH - RIGHT_MARGIN - 24, log)
    parts = _draw_axis_labels(
        [(x.position(value), f"{value:g}") for value in (xs if log or low == high else x.ticks())], y.start
    )
    for n, line in enumerate(chart.lines):
        colour, stroke = _colour_class(n), STROKES[n % len(STROKES)]
        parts += [
            _draw_rule(f"event {colour}", x.position(x_value), y.start, x.position(x_value), y.end)
            for x_value in line.event_xs
        ]
        is_thin = chart.kind == "dots"
        parts.append(
            _draw_polyline(f"series {colour}{' thin' if is_thin else ''}", line.points, x, y, "" if is_thin else stroke)
        )
        parts.append(_draw_markers(n, [(x.position(x_value), y.position(value)) for x_value, value in line.points]))
    return parts


def _draw_bars(chart: Chart, y: Scale) -> list[str]:
    """Draw groups of bars, with the values above them."""
    group_width = (WIDTH - RIGHT_MARGIN - LEFT_MARGIN) / max(1, len(chart.categories))
    bar_width = 0.8 * group_width / max(1, len(chart.lines))
    parts = _draw_axis_labels(
        [(LEFT_MARGIN + (n + 0.5) * group_width, name) for n, name in enumerate(chart.categories)], y.start, group_width
    )
    for n, line in enumerate(chart.lines):
        shade = f'fill-opacity="{SHADES[n % len(SHADES)]}"'
        for x_value, value in line.points:
            left, top = LEFT_MARGIN + (x_value + 0.1) * group_width + n * bar_width, y.position(value)
            size = f'width="{bar_width * 0.92:.1f}" height="{y.start - top:.1f}"'
            parts.append(f'<rect class="bar {_colour_class(n)}" x="{left:.1f}" y="{top:.1f}" {size} {shade}/>')
            parts.append(_draw_text(left + bar_width * 0.46, top - 3, f"{value:,.0f}", "label middle"))
    return parts


def _draw_heat_map(chart: Chart, top: float, axis_y: float) -> list[str]:
    """Draw a heat map whose cells show their values. Cells without a value are empty."""
    cell_width, cell_height = (
        (WIDTH - RIGHT_MARGIN - LEFT_MARGIN) / max(1, len(chart.categories)),
        (axis_y - top) / max(1, len(chart.lines)),
    )
    values = [value for line in chart.lines for _, value in line.points]
    shade = Scale(min(values), max(values), 0.1, 0.6)
    parts = _draw_axis_labels(
        [(LEFT_MARGIN + (n + 0.5) * cell_width, name) for n, name in enumerate(chart.categories)], axis_y, cell_width
    )
    for n, line in enumerate(chart.lines):
        middle = top + (n + 0.5) * cell_height
        parts.append(
            _draw_text(
                LEFT_MARGIN - 4,
                middle + 3,
                one_line(line.name, max_chars=int(LEFT_MARGIN / CHARACTER_WIDTH)),
                "label end",
            )
        )
        for column, value in line.points:
            left, size = (
                LEFT_MARGIN + column * cell_width,
                f'width="{cell_width - 1:.1f}" height="{cell_height - 1:.1f}"',
            )
            fill = f'fill-opacity="{shade.position(value):.2f}"'
            parts.append(f'<rect class="cell" x="{left:.1f}" y="{top + n * cell_height:.1f}" {size} {fill}/>')
            parts.append(_draw_text(left + cell_width / 2, middle + 3, f"{value:,.1f}", "figure middle"))
    return parts


def _draw_legend(chart: Chart) -> tuple[list[str], int]:
    """Return the legend with the lines' names and markers, and its number of rows."""
    parts, left, row = [], float(LEFT_MARGIN), 0
    for n, line in enumerate(chart.lines):
        name = one_line(line.name, max_chars=MAX_LEGEND_CHARS)
        width = 26 + CHARACTER_WIDTH * len(name)
        if left > LEFT_MARGIN and left + width > WIDTH - RIGHT_MARGIN:
            left, row = float(LEFT_MARGIN), row + 1
        y = TOP_MARGIN - 6 + row * LEGEND_ROW_HEIGHT
        if chart.kind == "bars":
            shade = f'fill-opacity="{SHADES[n % len(SHADES)]}"'
            parts.append(f'<rect class="bar {_colour_class(n)}" x="{left:.1f}" y="{y}" width="12" height="9" {shade}/>')
        else:
            parts.append(_draw_markers(n, [(left + 6, y + 5)]))
        parts.append(_draw_text(left + 16, y + 8, name, "label"))
        left += width
    return parts, row + 1


def _colour_class(n: int) -> str:
    return f"series{n % COLOUR_COUNT + 1}"


def _draw_markers(n: int, positions: Points) -> str:
    path = "".join(f"M{x:.1f},{y:.1f}{MARKERS[n % len(MARKERS)]}" for x, y in positions)
    return f'<path class="mark {_colour_class(n)}" d="{path}"/>'


def _draw_polyline(css_class: str, points: Points, x: Scale, y: Scale, stroke: str = "") -> str:
    coordinates = " ".join(f"{x.position(x_value):.1f},{y.position(value):.1f}" for x_value, value in points)
    dashes = f' stroke-dasharray="{stroke}"' if stroke else ""
    return f'<polyline class="{css_class}" points="{coordinates}"{dashes}/>'


def _wrap_svg(parts: Iterable[str], height: int, label_attribute: str) -> str:
    return f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" {label_attribute}>' + "".join(parts) + "</svg>"


def _draw_text(x: float, y: float, text: str, css_class: str) -> str:
    return f'<text class="{css_class}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _draw_rule(css_class: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{css_class}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _draw_grid(y: Scale, ticks: Sequence[float]) -> list[str]:
    """Return a rule and a label for each tick of the vertical axis."""
    rules = [
        _draw_rule("grid", LEFT_MARGIN, y.position(tick), WIDTH - RIGHT_MARGIN, y.position(tick)) for tick in ticks
    ]
    return rules + [_draw_text(LEFT_MARGIN - 4, y.position(tick) + 3, f"{tick:,.10g}", "label end") for tick in ticks]


def _draw_axis_labels(labels: Sequence[tuple[float, str]], axis_y: float, max_label_width: float = 0) -> list[str]:
    """Return the labels of the horizontal axis, each cut to max_label_width pixels or, if that is 0, without overlapping ones."""
    parts, previous_end = [], float("-inf")
    for middle, text in labels:
        label = one_line(text, max_chars=max(4, int(max_label_width / CHARACTER_WIDTH))) if max_label_width else text
        half_width = len(label) * CHARACTER_WIDTH / 2 + 3
        if max_label_width or middle - half_width >= previous_end:
            parts.append(_draw_text(middle, axis_y + 13, label, "label middle"))
            previous_end = middle + half_width
    return parts


def _draw_time_labels(x: Scale, axis_y: float) -> list[str]:
    """Return labels at round local times."""
    span_s = x.high - x.low
    step_s = next((step_s for step_s in LABEL_STEPS_S if span_s / step_s <= MAX_TIME_LABELS), LABEL_STEPS_S[-1])
    time_format = "%d %b" if step_s >= DAY_S else "%a %H:%M" if span_s > DAY_S else "%H:%M"
    utc_offset_s = time.localtime(x.high).tm_gmtoff
    first_label_s = math.ceil((x.low + utc_offset_s) / step_s) * step_s - utc_offset_s
    parts = []
    for time_s in (first_label_s + n * step_s for n in range(MAX_TIME_LABELS + 1)):
        if time_s <= x.high:
            position = min(max(x.position(time_s), LEFT_MARGIN + 18), WIDTH - RIGHT_MARGIN - 18)
            text = time.strftime(time_format, time.localtime(time_s))
            parts.append(_draw_text(position, axis_y + 13, text, "label middle"))
    return parts


def _split_at_gaps(points: Points, max_gap_s: float) -> list[list[tuple[float, float]]]:
    """Return sequences of points that are at most max_gap_s apart."""
    pieces: list[list[tuple[float, float]]] = []
    for point in points:
        if pieces and point[0] - pieces[-1][-1][0] <= max_gap_s:
            pieces[-1].append(point)
        else:
            pieces.append([point])
    return pieces


def _round_up(value: float) -> float:
    """Return the smallest round number that is at least the value."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * power >= value)
