"""A rolling play: sizes after a resume, hosts that stop serving, and the moments of the record."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.fleet.guard import Floor, Guard
from sparkwright.fleet.rollout import Record, Roll
from sparkwright.project.rollout_policy import RolloutPolicy

HOSTS = ["s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"]


def guard(up: set[str]) -> Guard:
    def serves(names: Sequence[str]) -> set[str]:
        return up & set(names)

    return Guard([Floor("lab", tuple(HOSTS), 1)], serves)


def test_a_share_is_of_all_hosts_after_a_resume_too() -> None:
    assert Roll(RolloutPolicy(serial=("25%",)), everyone=8).next(["s7", "s8"], [])[0] == ["s7", "s8"]
    assert Roll(RolloutPolicy(serial=("25%",))).next(HOSTS, [])[0] == ["s1", "s2"]


def test_a_host_that_was_proved_and_went_silent_stops_the_run() -> None:
    up = set(HOSTS)
    roll = Roll(RolloutPolicy(serial=(1,)), guard=guard(up))
    assert roll.next(HOSTS, []) == (["s1"], "")
    up.remove("s1")
    go, why = roll.next(HOSTS[1:], ["s1"])
    assert (go, why) == ([], "s1 stopped serving after its turn")


def test_a_batch_is_cut_where_the_last_server_would_go_and_the_rest_comes_later() -> None:
    roll = Roll(RolloutPolicy(), guard=guard(set(HOSTS)))
    first, _ = roll.next(HOSTS, [])
    assert first == HOSTS[:-1]
    roll.ended(first, {})
    assert roll.next(HOSTS[-1:], first) == (["s8"], "")


def test_a_batch_under_way_counts_as_left_until_it_is_over() -> None:
    kept: list[tuple[list[str], list[str]]] = []
    record = Record("restart", HOSTS[:3])
    roll = Roll(
        RolloutPolicy(serial=(1,)), record=record, save=lambda value: kept.append((value.under_way, value.left))
    )
    roll.begins(["s1"])
    roll.ended(["s1"], {})
    roll.begins(["s2"])
    roll.ended([], {"s2": "it broke"})
    assert kept == [(["s1"], ["s1", "s2", "s3"]), ([], ["s2", "s3"]), (["s2"], ["s2", "s3"]), ([], ["s2", "s3"])]
    assert record.failed == {"s2": "it broke"}


def test_a_host_is_through_after_the_last_play_that_is_for_it() -> None:
    record = Record("site", ["s1", "s2"])
    Roll(RolloutPolicy(), record=record, finishes=frozenset({"s1"})).ended(["s1", "s2"], {})
    assert record.left == ["s2"]
