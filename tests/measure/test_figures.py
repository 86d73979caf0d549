"""Figures of gaps: stalls are found, and chunks that arrive in one piece are none."""

import pytest

from sparkwright.measure import figures
from sparkwright.measure.stream import Stream


def make_stream(gaps_s: list[float]) -> Stream:
    at_s, points = 0.1, [(0.1, 1)]
    for n, gap_s in enumerate(gaps_s):
        at_s += gap_s
        points.append((at_s, n + 2))
    return Stream(points=points, total=len(points))


def test_stall_of_a_second_is_counted_once() -> None:
    summary = figures.summarize([make_stream([0.02] * 60 + [1.0] + [0.02] * 60)])
    assert (summary.stalls, summary.largest_gap_s) == (1, pytest.approx(1.0))
    assert summary.stall_s == pytest.approx(1.0)


def test_chunks_that_arrive_together_are_not_stalls() -> None:
    summary = figures.summarize([make_stream([0.0, 0.0, 0.0, 0.04] * 40)])
    assert (summary.stalls, summary.stall_s) == (0, 0)


def test_stall_among_grouped_chunks_is_found() -> None:
    summary = figures.summarize([make_stream([0.0, 0.0, 0.0, 0.04] * 40 + [1.0])])
    assert (summary.stalls, summary.stall_s) == (1, pytest.approx(1.0))
