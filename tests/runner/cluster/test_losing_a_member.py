"""A member that is killed, frozen or disconnected is noticed by all others, and every running member runs its rescue."""

import signal
from pathlib import Path

import pytest

from tests.runner.cluster.members import (
    Group,
    Member,
    barrier_task,
    prepare_task,
    running_group,
    swap_block,
    write_task,
)
from tests.runner.cluster.proxy import open_cable
from tests.waiting import wait_until

#: a member is lost after four beats: long enough for a machine that is busy with other tests
BEAT_S = 1.0
SILENCE_MESSAGE = "silent for 4 s"
RESCUE = (write_task("restored"),)
SWAP = swap_block(prepare_task(), barrier_task("prepared"), rescue=RESCUE)


def wait_until_preparing(group: Group) -> None:
    for member in group.members:
        member.wait_until_preparing()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_killed_member_is_lost_for_all_others(three: Group, rank: int) -> None:
    members = three.start(SWAP)
    wait_until_preparing(three)
    members[rank].kill(signal.SIGKILL)
    others = [member for member in members if member is not members[rank]]
    for other in others:
        other.let_prepare()
    for other in others:
        assert other.recap()["exit"] == 0
        message = f"lost spark{rank + 1} (rank {rank}): connection closed."
        assert other.outcome("Meet at prepared") == ("failed", message)
        assert other.written() == "restored\n"
    assert "was interrupted" in members[rank].recap()["msg"]


@pytest.mark.parametrize("rank", [0, 1])
def test_frozen_member_is_lost_and_restores_when_it_continues(tmp_path: Path, rank: int) -> None:
    """The others prepare for as long, and are not lost."""
    with running_group(tmp_path, world=3, beat_s=BEAT_S) as three:
        members = three.start(SWAP)
        wait_until_preparing(three)
        frozen, others = members[rank], [member for member in members if member is not members[rank]]
        frozen.kill(signal.SIGSTOP)
        for other in others:
            other.let_prepare()
        for other in others:
            wait_until_restored(other)
            assert other.outcome("Meet at prepared")[1] == f"lost spark{rank + 1} (rank {rank}): {SILENCE_MESSAGE}."
        frozen.kill(signal.SIGCONT)
        frozen.let_prepare()
        assert three.exit_codes() == [0, 0, 0]
        assert frozen.written() == "restored\n"
        assert "lost spark" in frozen.outcome("Meet at prepared")[1]


def wait_until_restored(member: Member) -> None:
    wait_until(lambda: member.written() == "restored\n", f"the rescue of {member.name}")


def test_cut_link_is_noticed_on_both_sides(tmp_path: Path) -> None:
    with running_group(tmp_path, beat_s=BEAT_S) as pair, open_cable(pair.port) as link:
        head, worker = pair.begin(0, SWAP), pair.begin(1, SWAP, cluster={"port": link.port})
        wait_until_preparing(pair)
        link.cut()
        for member in pair.members:
            member.let_prepare()
        assert pair.exit_codes() == [0, 0]
        assert head.outcome("Meet at prepared")[1] == f"lost spark2 (rank 1): {SILENCE_MESSAGE}."
        assert worker.outcome("Meet at prepared")[1] == f"lost spark1 (rank 0): {SILENCE_MESSAGE}."
        assert (head.written(), worker.written()) == ("restored\n", "restored\n")


def test_rescue_barrier_does_not_wait_for_a_lost_member(pair: Group) -> None:
    rescue = (barrier_task("all stopped", phase="rescue", ignore_errors=True), *RESCUE)
    head, worker = pair.start(swap_block(prepare_task(), barrier_task("prepared"), rescue=rescue))
    wait_until_preparing(pair)
    worker.kill(signal.SIGKILL)
    head.let_prepare()
    assert head.recap()["exit"] == 0
    assert head.outcome("Meet at all stopped") == ("ignored", "lost spark2 (rank 1): connection closed.")
    assert head.written() == "restored\n"
