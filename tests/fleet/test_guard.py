"""The last serving host of a group is never stopped; the guard queries which hosts serve."""

from collections.abc import Sequence

import pytest

from sparkwright.fleet.guard import Floor, Guard, compute_floors

LAB = ("s1", "s2", "s3", "s4")


class Hosts:
    """Hosts of which some serve. queried: the names in all queries."""

    def __init__(self, serving: str) -> None:
        self.up = set(serving.split())
        self.queried: list[str] = []

    def serves(self, names: Sequence[str]) -> set[str]:
        self.queried += names
        return self.up & set(names)


@pytest.mark.parametrize(
    ("up", "batch", "min_serving", "stoppable"),
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
def test_guard_keeps_the_minimum_serving(up: str, batch: str, min_serving: int, stoppable: str) -> None:
    guard = Guard([Floor("lab", LAB, min_serving)], Hosts(up).serves)
    allowed, reason = guard.select_stoppable(batch.split())
    assert allowed == stoppable.split()
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
    assert len(hosts.queried) < 20


def test_host_that_stopped_serving_is_found() -> None:
    hosts = Hosts("s1 s2")
    guard = Guard([Floor("lab", LAB, 1)], hosts.serves)
    assert guard.find_not_serving(["s1", "s2"]) == []
    hosts.up.remove("s2")
    assert guard.find_not_serving(["s1", "s2"]) == ["s2"]


PAIRED = {"all": LAB, "lab": LAB, "pair": ("s1", "s2")}
TWO_SERVERS = {"lab": ("s1/chat", "s1/vectors", "s2/chat")}


@pytest.mark.parametrize(
    ("groups", "configured", "targets", "floors"),
    [
        pytest.param(PAIRED, {}, "s1 s3", {"lab": 1}, id="several hosts of a group"),
        pytest.param(PAIRED, {}, "s1", {}, id="a single host"),
        pytest.param(PAIRED, {"lab": 2}, "s1", {"lab": 2}, id="configured, a single host"),
        pytest.param(PAIRED, {"all": 1}, "s1", {"all": 1}, id="configured for all"),
        pytest.param(PAIRED, {"lab": 0}, "s1 s3 s4", {}, id="configured as 0"),
        pytest.param(TWO_SERVERS, {}, "s1/chat s1/vectors", {}, id="two servers of a host"),
        pytest.param(TWO_SERVERS, {}, "s1/chat s2/chat", {"lab": 1}, id="servers of two hosts"),
    ],
)
def test_floors_of_groups(
    groups: dict[str, tuple[str, ...]], configured: dict[str, int], targets: str, floors: dict[str, int]
) -> None:
    computed = compute_floors(groups, configured, targets.split(), "all")
    assert {floor.group: floor.min_serving for floor in computed} == floors
