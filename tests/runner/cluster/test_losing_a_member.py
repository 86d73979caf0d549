"""A member that is killed, frozen or cut off is noticed by all others, and all that can run their rescue."""

import signal
from pathlib import Path

import pytest

from tests.runner.cluster.members import Group, Member, barrier_task, running_group, shell_task, swap_block
from tests.runner.cluster.proxy import open_cable
from tests.waiting import wait_until

#: silent for four seconds is lost: long enough for a machine that is busy with other tests
BEAT_S = 1.0
SILENCE_MESSAGE = "silent for 4 s"
RESCUE = (shell_task("Restore previous server", "echo restored >> said"),)


def start_and_join(pair: Group) -> list[Member]:
    """Wait until all have joined; each works until its file `ready` exists."""
    wait = shell_task("Prepare", "touch working; until [ -e ready ]; do sleep 0.05; done")
    members = pair.start(swap_block(wait, barrier_task("prepared"), rescue=RESCUE))
    for member in members:
        wait_until((member.home / "working").exists, f"{member.name} works")
    return members


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_killed_member_is_lost_for_all_others(tmp_path: Path, rank: int) -> None:
    with running_group(tmp_path, world=3) as three:
        members = start_and_join(three)
        members[rank].kill(signal.SIGKILL)
        others = [member for member in members if member is not members[rank]]
        for other in others:
            (other.home / "ready").touch()
        for other in others:
            assert other.recap()["exit"] == 0
            status, message = other.outcome("Meet at prepared")
            assert (status, message) == ("failed", f"lost spark{rank + 1} (rank {rank}): connection closed.")
            assert other.said() == "restored\n"
        assert "was interrupted" in members[rank].recap()["msg"]


@pytest.mark.parametrize("rank", [0, 1])
def test_frozen_member_is_lost_and_restores_when_it_continues(tmp_path: Path, rank: int) -> None:
    """The others are silent for as long, and are not lost."""
    with running_group(tmp_path, world=3, beat_s=BEAT_S) as three:
        members = start_and_join(three)
        frozen, others = members[rank], [member for member in members if member is not members[rank]]
        frozen.kill(signal.SIGSTOP)
        for other in others:
            (other.home / "ready").touch()
        for other in others:
            wait_until(lambda value=other: value.said() == "restored\n", "it is noticed, and restored")
            assert other.outcome("Meet at prepared")[1] == f"lost spark{rank + 1} (rank {rank}): {SILENCE_MESSAGE}."
        frozen.kill(signal.SIGCONT)
        (frozen.home / "ready").touch()
        assert [member.recap()["exit"] for member in members] == [0, 0, 0]
        assert frozen.said() == "restored\n"
        assert "lost spark" in frozen.outcome("Meet at prepared")[1]


def test_cut_link_is_noticed_on_both_sides(tmp_path: Path) -> None:
    with running_group(tmp_path, beat_s=BEAT_S) as pair, open_cable(pair.port) as link:
        wait = shell_task("Prepare", "touch working; until [ -e ready ]; do sleep 0.05; done")
        steps = swap_block(wait, barrier_task("prepared"), rescue=RESCUE)
        head, worker = pair.begin(0, steps), pair.begin(1, steps, cluster={"port": link.port})
        for item in (head, worker):
            wait_until((item.home / "working").exists, f"{item.name} works")
        link.cut()
        for item in (head, worker):
            (item.home / "ready").touch()
        assert (head.recap()["exit"], worker.recap()["exit"]) == (0, 0)
        assert head.outcome("Meet at prepared")[1] == f"lost spark2 (rank 1): {SILENCE_MESSAGE}."
        assert worker.outcome("Meet at prepared")[1] == f"lost spark1 (rank 0): {SILENCE_MESSAGE}."
        assert (head.said(), worker.said()) == ("restored\n", "restored\n")


def test_rescue_barrier_does_not_wait_for_a_lost_member(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        wait = shell_task("Prepare", "touch working; until [ -e ready ]; do sleep 0.05; done")
        rescue = (barrier_task("all stopped", phase="rescue", ignore_errors=True), *RESCUE)
        members = pair.start(swap_block(wait, barrier_task("prepared"), rescue=rescue))
        for member in members:
            wait_until((member.home / "working").exists, f"{member.name} works")
        members[1].kill(signal.SIGKILL)
        (members[0].home / "ready").touch()
        assert members[0].recap()["exit"] == 0
        assert members[0].outcome("Meet at all stopped") == (
            "ignored",
            "lost spark2 (rank 1): connection closed.",
        )
        assert members[0].said() == "restored\n"
