"""A host's checks as spans for plots and tables, and as periods in which it was not ok."""

import dataclasses
from typing import Any

import pytest

from sparkwright import html
from sparkwright.html import checks
from tests.html import weeks


def test_a_week_fits_a_plot_and_includes_every_check() -> None:
    host = weeks.make_host(weeks.make_checks())
    assert sum(span.checks for span in host.spans) == len(host.checks) == 7 * 288
    assert len(host.spans) <= checks.MAX_SPANS
    assert host.ok_share == 1.0
    assert list(host.episodes) == []


def test_a_bad_check_is_shown_among_good_ones() -> None:
    records = weeks.make_checks(
        lambda hours: {"state": "down", "why": "gone", "memory_gib": 1.5} if hours == 30 else {}
    )
    host = weeks.make_host(records)
    (bad,) = [span for span in host.spans if span.state != "ok"]
    assert (bad.state, bad.why, bad.memory_gib) == ("down", "gone", 1.5)
    (episode,) = host.episodes
    assert episode.end_s is not None and episode.end_s - episode.start_s == 300


def test_a_current_episode_has_no_end() -> None:
    host = weeks.make_host(
        weeks.make_checks(lambda hours: {"state": "wedged", "why": "no token"} if hours >= 160 else {})
    )
    assert [(episode.state, episode.end_s) for episode in host.episodes] == [("wedged", None)]


def test_a_time_without_checks_has_no_span() -> None:
    host = weeks.make_host(weeks.make_checks(lambda hours: None if 24 <= hours < 48 else {}))
    gap = weeks.SINCE_S + 24 * weeks.HOUR_S, weeks.SINCE_S + 48 * weeks.HOUR_S
    assert not [span for span in host.spans if gap[0] <= span.start_s < gap[1] - host.span_s]


def test_only_new_measurements_are_points() -> None:
    host = weeks.make_host(weeks.make_checks(lambda hours: {"tok_per_s": 48.0} if hours % 6 == 0 else {}))
    assert sum(span.tok_per_s is not None for span in host.spans) == 28
    assert host.baseline_tok_per_s == 52.0


def test_unknown_fields_of_a_newer_host_are_ignored() -> None:
    event: dict[str, Any] = {"fields": ["time_s", "state", "mood"], "rows": [[weeks.SINCE_S + 5, "ok", "good"]]}
    host = checks.parse_host_checks("spark1", event, weeks.SINCE_S, weeks.UNTIL_S)
    assert [check.state for check in host.checks] == ["ok"]
    assert host.spans[0].memory_gib is None


def test_shares_are_of_the_time_that_checks_cover() -> None:
    """Nine good checks of five minutes and a bad one, followed by days without checks, are not 90 % ok."""
    records = [weeks.make_check(weeks.SINCE_S + 300.0 * n) for n in range(9)]
    records.append(weeks.make_check(weeks.SINCE_S + 2700.0, "down", why="gone"))
    host = weeks.make_host(records)
    assert host.ok_share == 2700 / (2700 + 900)  # the last check counts until the next is overdue
    assert host.unknown_share == pytest.approx(1 - 3600 / (7 * weeks.DAY_S))
    (episode,) = host.episodes
    assert (episode.start_s, episode.end_s) == (weeks.SINCE_S + 2700, weeks.SINCE_S + 3600)
    assert not episode.is_end_known


def test_a_manual_check_counts_for_ten_minutes() -> None:
    host = weeks.make_host([dataclasses.replace(weeks.make_check(weeks.SINCE_S), every_s=0.0)])
    (period,) = host.periods
    assert (period.state, period.end_s - period.start_s, period.is_end_known) == ("ok", 600, False)
    page = html.render_hosts_page([host], weeks.SINCE_S, weeks.UNTIL_S)
    assert "<title>unknown</title>" in page
    assert ">99.9 %<" in page  # unknown


def test_a_state_lasts_until_the_next_check() -> None:
    bad = {"state": "wedged", "why": "no token"}
    host = weeks.make_host(weeks.make_checks(lambda hours: bad if 10 <= hours < 10.5 else {}))
    periods = [(period.state, (period.start_s - weeks.SINCE_S) / weeks.HOUR_S) for period in host.periods]
    assert periods == [("ok", 0.0), ("wedged", 10.0), ("ok", 10.5)]
    assert host.unknown_share == 0
