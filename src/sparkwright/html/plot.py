"""One figure of one host over time, as an SVG. Colours are the page's CSS, and always have a text beside them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from sparkwright.health.record import severity
from sparkwright.html.checks import Period

WIDTH, HEIGHT, BAND = 720, 120, 34
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 26, 18
#: number of spans without a check after which a line is interrupted
BREAK = 2.5
HOUR_S, DAY_S = 3600, 86400
#: intervals between time labels, seconds
STEPS_S = (300, 900, 1800, HOUR_S, 3 * HOUR_S, 6 * HOUR_S, 12 * HOUR_S, DAY_S, 2 * DAY_S, 7 * DAY_S, 30 * DAY_S)
LABELS = 8


@dataclass(frozen=True, slots=True)
class Axis:
    """The time axis of a plot, in seconds since the epoch, and the length of a span."""

    since_s: float
    until_s: float
    span_s: float

    def x(self, time_s: float) -> float:
        """Return the horizontal position of a time, pixels."""
        share = (time_s - self.since_s) / max(1.0, self.until_s - self.since_s)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


@dataclass(frozen=True, slots=True)
class Figure:
    """The properties of a plotted figure."""

    #: with its unit
    name: str
    #: top of the scale; None derives it from the values
    top: float | None = None
    #: (name, value) of a dashed line
    reference: tuple[str, float] | None = None
    #: join measurements that are far apart, too
    joined: bool = False


def line(figure: Figure, points: Sequence[tuple[float, float]], axis: Axis, label: str) -> str:
    """Return a line plot of (time, value) points.

    Args:
        figure: the plotted figure.
        points: (seconds since the epoch, value).
        axis: the time axis.
        label: text alternative of the picture.
    """
    values = [value for _, value in points] + ([figure.reference[1]] if figure.reference else [])
    top = figure.top or _nice(max(values, default=1.0) * 1.1)
    floor = HEIGHT - BOTTOM

    def y(value: float) -> float:
        return floor - min(max(value / top, 0.0), 1.0) * (floor - TOP)

    parts = [_text(0, 11, figure.name, "name"), *_grid(top, y), *_times(axis, floor)]
    if figure.reference:
        at = y(figure.reference[1])
        parts.append(f'<line class="reference" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        parts.append(_text(WIDTH - RIGHT, at - 3, figure.reference[0], "label end"))
    for piece in _pieces(points, math.inf if figure.joined else BREAK * axis.span_s):
        drawn = " ".join(f"{axis.x(at):.1f},{y(value):.1f}" for at, value in piece)
        parts.append(f'<polyline class="line" points="{drawn}"/>')
        if figure.joined or len(piece) == 1:
            parts += [f'<circle class="dot" cx="{axis.x(at):.1f}" cy="{y(value):.1f}" r="2"/>' for at, value in piece]
    if not points:
        parts.append(_text(LEFT + 8, (floor + TOP) / 2, "not known", "label"))
    return _svg(parts, HEIGHT, label)


def band(found: Sequence[Period], axis: Axis, label: str) -> str:
    """Return the states as a band of colours, worse states on top. Gaps are periods with an unknown state."""
    parts = [_text(0, 11, "state", "name")]
    frame = f'x="{LEFT}" y="16" width="{WIDTH - LEFT - RIGHT}" height="{BAND - 18}"'
    parts.append(f'<rect class="nothing" {frame}><title>not known</title></rect>')
    for period in sorted(found, key=lambda period: severity(period.state)):
        state, x, end = period.state, axis.x(period.start_s), axis.x(period.end_s)
        shape = f'x="{x:.1f}" y="16" width="{max(1.0, end - x):.1f}" height="{BAND - 18}"'
        parts.append(f'<rect class="state {escape(state)}" {shape}><title>{escape(state)}</title></rect>')
    return _svg(parts, BAND, label)


def _svg(parts: Iterable[str], height: int, label: str) -> str:
    start = f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
    return start + "".join(parts) + "</svg>"


def _text(x: float, y: float, words: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>'


def _grid(top: float, at: Callable[[float], float]) -> list[str]:
    rows = []
    for share in (0.0, 0.5, 1.0):
        height = at(top * share)
        rows.append(f'<line class="grid" x1="{LEFT}" y1="{height:.1f}" x2="{WIDTH - RIGHT}" y2="{height:.1f}"/>')
        rows.append(_text(LEFT - 4, height + 3, f"{top * share:.3g}", "label end"))
    return rows


def _times(axis: Axis, floor: float) -> list[str]:
    """Return labels at round local times."""
    span_s = axis.until_s - axis.since_s
    step_s = next((index for index in STEPS_S if span_s / index <= LABELS), STEPS_S[-1])
    form = "%d %b" if step_s >= DAY_S else "%a %H:%M" if span_s > DAY_S else "%H:%M"
    shift_s = time.localtime(axis.until_s).tm_gmtoff
    first = math.ceil((axis.since_s + shift_s) / step_s) * step_s - shift_s
    parts = []
    for n in range(LABELS + 1):
        at = first + n * step_s
        if at > axis.until_s:
            break
        x = min(max(axis.x(at), LEFT + 18), WIDTH - RIGHT - 18)
        parts.append(_text(x, floor + 13, time.strftime(form, time.localtime(at)), "label middle"))
    return parts


def _pieces(points: Sequence[tuple[float, float]], most_s: float) -> list[list[tuple[float, float]]]:
    """Return runs of points that are at most most_s apart."""
    pieces: list[list[tuple[float, float]]] = []
    for point in points:
        if pieces and point[0] - pieces[-1][-1][0] <= most_s:
            pieces[-1].append(point)
        else:
            pieces.append([point])
    return pieces


def _nice(value: float) -> float:
    """Return the next round number that is not smaller."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10) if step * power >= value)
