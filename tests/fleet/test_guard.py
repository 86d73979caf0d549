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
def test_so_many_may_go_that_enough_go_on_serving(up: str, batch: str, least: int, go: str) -> None:
    guard = Guard([Floor("lab", LAB, least)], Hosts(up).serves)
    allowed, reason = guard.select_stoppable(batch.split())
    assert allowed == go.split()
    assert ("min_serving" in reason) == (allowed != batch.split())


def test_a_host_of_two_groups_must_be_spared_by_both() -> None:
    guard = Guard([Floor("lab", LAB, 1), Floor("pair", ("s1", "s2"), 1)], Hosts("s1 s3 s4").serves)
    allowed, reason = guard.select_stoppable(["s1", "s3"])
    assert allowed == ["s3"]
    assert reason.startswith("pair must keep 1 serving")


def test_a_hundred_others_are_not_asked_when_the_first_ones_serve() -> None:
    lab = tuple(f"s{n}" for n in range(100))
    hosts = Hosts(" ".join(lab))
    assert Guard([Floor("lab", lab, 2)], hosts.serves).select_stoppable(["s0"])[0] == ["s0"]
    assert len(hosts.asked) < 20


def test_what_was_proved_and_went_silent_is_noticed() -> None:
    hosts = Hosts("s1 s2")
    guard = Guard([Floor("lab", LAB, 1)], hosts.serves)
    assert guard.find_not_serving(["s1", "s2"]) == []
    hosts.up.remove("s2")
    assert guard.find_not_serving(["s1", "s2"]) == ["s2"]


def test_one_host_of_a_group_is_kept_when_a_run_is_for_several_of_it_and_nothing_is_said() -> None:
    groups = {"all": LAB, "lab": LAB, "pair": ("s1", "s2")}
    group = compute_floors(groups, {}, ["s1", "s3"], "all")
    assert [(item.group, item.min_serving) for item in group] == [("lab", 1)]
    assert compute_floors(groups, {}, ["s1"], "all") == []


def test_several_servers_of_one_machine_are_not_several_hosts() -> None:
    lab = ("s1/chat", "s1/vectors", "s2/chat")
    assert compute_floors({"lab": lab}, {}, ["s1/chat", "s1/vectors"], "all") == []
    assert [floor.min_serving for floor in compute_floors({"lab": lab}, {}, ["s1/chat", "s2/chat"], "all")] == [1]


def test_what_groups_yml_says_counts_for_a_single_host_too_and_nought_is_nought() -> None:
    groups = {"all": LAB, "lab": LAB}
    assert [(floor.group, floor.min_serving) for floor in compute_floors(groups, {"lab": 2}, ["s1"], "all")] == [
        ("lab", 2)
    ]
    assert compute_floors(groups, {"lab": 0}, list(LAB), "all") == []
    assert [floor.group for floor in compute_floors(groups, {"all": 1}, ["s1"], "all")] == ["all"]
