"""A host's checks as spans for plots and table, and as periods in which it was not ok."""

import dataclasses
from typing import Any

import pytest

from sparkwright import html
from sparkwright.html import checks
from tests.html import weeks


def test_a_week_fits_a_plot_and_loses_no_check() -> None:
    host = weeks.make_host(weeks.make_checks())
    assert sum(span.checks for span in host.spans) == len(host.checks) == 7 * 288
    assert len(host.spans) <= checks.MAX_SPANS
    assert host.ok_share == 1.0
    assert list(host.episodes) == []


def test_one_bad_check_is_not_lost_among_good_ones() -> None:
    records = weeks.make_checks(
        lambda hours: {"state": "down", "why": "gone", "memory_gib": 1.5} if hours == 30 else {}
    )
    host = weeks.make_host(records)
    (bad,) = [span for span in host.spans if span.state != "ok"]
    assert (bad.state, bad.why, bad.memory_gib) == ("down", "gone", 1.5)
    (episode,) = host.episodes
    assert episode.end_s is not None
    assert episode.end_s - episode.start_s == 300


def test_what_goes_on_has_no_end() -> None:
    host = weeks.make_host(
        weeks.make_checks(lambda hours: {"state": "wedged", "why": "no token"} if hours >= 160 else {})
    )
    assert [(episode.state, episode.end_s) for episode in host.episodes] == [("wedged", None)]


def test_a_time_without_checks_is_no_span() -> None:
    """Its state is unknown, and nothing is filled in."""
    host = weeks.make_host(weeks.make_checks(lambda hours: None if 24 <= hours < 48 else {}))
    gap = weeks.SINCE_S + 24 * weeks.HOUR_S, weeks.SINCE_S + 48 * weeks.HOUR_S
    assert not [span for span in host.spans if gap[0] <= span.start_s < gap[1] - host.span_s]


def test_a_rate_that_was_not_measured_anew_is_no_point() -> None:
    host = weeks.make_host(weeks.make_checks(lambda hours: {"tok_per_s": 48.0} if hours % 6 == 0 else {}))
    assert sum(span.tok_per_s is not None for span in host.spans) == 28
    assert host.baseline_tok_per_s == 52.0


def test_fields_of_a_newer_host_are_left_out() -> None:
    event: dict[str, Any] = {"fields": ["time_s", "state", "mood"], "rows": [[weeks.SINCE_S + 5, "ok", "good"]]}
    host = checks.build_host("spark1", event, weeks.SINCE_S, weeks.UNTIL_S)
    assert [check.state for check in host.checks] == ["ok"]
    assert host.spans[0].memory_gib is None


def test_a_check_counts_for_as_long_as_it_speaks() -> None:
    """Nine good checks of five minutes and one bad one, followed by half a day without checks: that is not 90 % ok."""
    records = [weeks.make_check(weeks.SINCE_S + 300.0 * n) for n in range(9)]
    records.append(weeks.make_check(weeks.SINCE_S + 2700.0, "down", why="gone"))
    host = weeks.make_host(records)
    assert host.ok_share == 2700 / (2700 + 900)  # the last one speaks until it is overdue
    assert host.unknown_share == pytest.approx(1 - 3600 / (7 * weeks.DAY_S))
    (episode,) = host.episodes
    assert (episode.start_s, episode.end_s) == (weeks.SINCE_S + 2700, weeks.SINCE_S + 3600)
    assert not episode.is_end_known


def test_a_check_by_hand_speaks_for_ten_minutes_and_not_for_the_week() -> None:
    (value,) = weeks.make_host([dataclasses.replace(weeks.make_check(weeks.SINCE_S + 100), every_s=0.0)]).periods
    assert (value.state, value.end_s - value.start_s, value.is_end_known) == ("ok", 600, False)
    drawn = html.page(
        [weeks.make_host([dataclasses.replace(weeks.make_check(weeks.SINCE_S), every_s=0.0)])],
        weeks.SINCE_S,
        weeks.UNTIL_S,
    )
    assert "<title>unknown</title>" in drawn
    assert ">99.9 %<" in drawn  # unknown


def test_a_state_is_drawn_from_its_check_to_the_next() -> None:
    bad = {"state": "wedged", "why": "no token"}
    host = weeks.make_host(weeks.make_checks(lambda hours: bad if 10 <= hours < 10.5 else {}))
    assert [(stretch.state, (stretch.start_s - weeks.SINCE_S) / weeks.HOUR_S) for stretch in host.periods] == [
        ("ok", 0.0),
        ("wedged", 10.0),
        ("ok", 10.5),
    ]
    assert host.unknown_share == 0
