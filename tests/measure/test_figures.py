"""Stalls are found in gaps; chunks that arrive together are not stalls."""

import itertools

import pytest

from sparkwright.measure import figures
from sparkwright.measure.stream import Stream

GROUPS = [0.0, 0.0, 0.0, 0.04] * 40


@pytest.mark.parametrize(
    ("gaps_s", "stalls"),
    [([0.02] * 60 + [1.0] + [0.02] * 60, 1), (GROUPS, 0), ([*GROUPS, 1.0], 1)],
    ids=["stall of a second", "chunks that arrive together", "stall after chunks that arrive together"],
)
def test_stalls_are_counted_with_their_duration(gaps_s: list[float], stalls: int) -> None:
    times_s = itertools.accumulate([0.1, *gaps_s])
    summary = figures.summarize(
        [Stream(points=[(at_s, n) for n, at_s in enumerate(times_s, 1)], total=len(gaps_s) + 1)]
    )
    assert summary.stalls == stalls
    assert summary.stall_s == pytest.approx(float(stalls))
    assert summary.largest_gap_s == pytest.approx(max(gaps_s))
