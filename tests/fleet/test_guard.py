"""The last server of a group is never stopped, according to the hosts that serve at that moment."""

from collections.abc import Sequence

import pytest

from sparkwright.fleet.guard import Floor, Guard, compute_floors

LAB = ("s1", "s2", "s3", "s4")


class Hosts:
    """Hosts that answer, and record the requests."""

    def __init__(self, serving: str) -> None:
        self.up = set(serving.split())
        self.asked: list[str] = []

    def serves(self, names: Sequence[str]) -> set[str]:
        self.asked += names
        return self.up & set(names)


@pytest.mark.parametrize(
    ("up", "batch", "least", "go"),
    [
        ("s1 s2 s3 s4", "s1", 1, "s1"),
        ("s1 s2 s3 s4", "s1 s2 s3 s4", 1, "s1 s2 s3"),
        ("s1 s2 s3 s4", "s1 s2", 3, "s1"),
        ("s1", "s1", 1, ""),
        ("s1", "s2", 1, "s2"),
        ("s1", "s1 s2 s3", 1, "s2 s3"),
        ("", "s1 s2 s3 s4", 1, "s1 s2 s3 s4"),
        ("s1 s2", "s1", 2, ""),
    ],
)
def test_guard_keeps_the_minimum_serving(up: str, batch: str, least: int, go: str) -> None:
    guard = Guard([Floor("lab", LAB, least)], Hosts(up).serves)
    allowed, reason = guard.select_stoppable(batch.split())
    assert allowed == go.split()
    assert ("min_serving" in reason) == (allowed != batch.split())


def test_host_of_two_groups_needs_both() -> None:
    guard = Guard([Floor("lab", LAB, 1), Floor("pair", ("s1", "s2"), 1)], Hosts("s1 s3 s4").serves)
    allowed, reason = guard.select_stoppable(["s1", "s3"])
    assert allowed == ["s3"]
    assert reason.startswith("pair must keep 1 serving")


def test_guard_queries_only_as_many_hosts_as_needed() -> None:
    lab = tuple(f"s{n}" for n in range(100))
    hosts = Hosts(" ".join(lab))
    assert Guard([Floor("lab", lab, 2)], hosts.serves).select_stoppable(["s0"])[0] == ["s0"]
    assert len(hosts.asked) < 20


def test_host_that_stopped_serving_is_found() -> None:
    hosts = Hosts("s1 s2")
    guard = Guard([Floor("lab", LAB, 1)], hosts.serves)
    assert guard.find_not_serving(["s1", "s2"]) == []
    hosts.up.remove("s2")
    assert guard.find_not_serving(["s1", "s2"]) == ["s2"]


def test_default_floor_is_one_host_if_a_run_affects_several() -> None:
    groups = {"all": LAB, "lab": LAB, "pair": ("s1", "s2")}
    group = compute_floors(groups, {}, ["s1", "s3"], "all")
    assert [(item.group, item.min_serving) for item in group] == [("lab", 1)]
    assert compute_floors(groups, {}, ["s1"], "all") == []


def test_servers_of_a_host_count_as_one() -> None:
    lab = ("s1/chat", "s1/vectors", "s2/chat")
    assert compute_floors({"lab": lab}, {}, ["s1/chat", "s1/vectors"], "all") == []
    assert [floor.min_serving for floor in compute_floors({"lab": lab}, {}, ["s1/chat", "s2/chat"], "all")] == [1]


def test_configured_floor_applies_to_a_single_host() -> None:
    groups = {"all": LAB, "lab": LAB}
    assert [(floor.group, floor.min_serving) for floor in compute_floors(groups, {"lab": 2}, ["s1"], "all")] == [
        ("lab", 2)
    ]
    assert compute_floors(groups, {"lab": 0}, list(LAB), "all") == []
    assert [floor.group for floor in compute_floors(groups, {"all": 1}, ["s1"], "all")] == ["all"]
