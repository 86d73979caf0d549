"""Before the first task all members' runs have joined, each with its host's lock; else none of them changes anything."""

import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright.host.runs import lock
from tests.runner.cluster.members import SECRET, Group, barrier_task, running_group, shell_task
from tests.waiting import wait_until

STEPS = (shell_task("Touch something", "echo touched >> said"), barrier_task("prepared"))


def test_head_names_the_missing_member_and_gives_up_unchanged(tmp_path: Path) -> None:
    with running_group(tmp_path, join_s=3) as pair:
        head = pair.begin(0, *STEPS)
        recap = head.recap()
        assert (recap["exit"], recap["msg"]) == (5, "spark2 (rank 1) did not join within 3 s.")
        assert "waiting for spark2 (rank 1)" in head.notes()
        assert (head.said(), head.locked) == ("", False)


def test_worker_gives_up_without_a_head(tmp_path: Path) -> None:
    with running_group(tmp_path, join_s=3) as pair:
        worker = pair.begin(1, *STEPS)
        recap = worker.recap()
        message = f"spark1 (rank 0) did not answer within 3 s (127.0.0.1 port {pair.port}: connection refused)."
        assert (recap["exit"], recap["msg"].startswith(message)) == (5, True)
        assert f"waiting for spark1 (rank 0) at 127.0.0.1 port {pair.port}: connection refused" in worker.notes()
        assert (worker.said(), worker.locked) == ("", False)


def test_first_timeout_ends_the_wait_of_all(tmp_path: Path) -> None:
    with running_group(tmp_path, world=3) as three:
        head = three.begin(0, *STEPS)
        wait_until(lambda: "waiting for spark2 (rank 1), spark3 (rank 2)" in head.notes(), "the head listens")
        worker = three.begin(1, *STEPS, cluster={"join_s": 5.0})
        for item in (head, worker):
            recap = item.recap()
            assert (recap["exit"], recap["msg"]) == (5, "spark3 (rank 2) did not join within 5 s.")
            assert item.said() == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_locked_host_fails_the_join_for_all(tmp_path: Path, rank: int) -> None:
    with running_group(tmp_path) as pair:
        locked, other = pair.members[rank], pair.members[1 - rank]
        owner = lock.LockOwner("playbooks/deploy.yml", "carol@x", "run-c", 7, 1.0)
        with lock.acquire(locked.state, owner, host="x"):
            pair.start(*STEPS)
            assert locked.recap()["exit"] == 5
            recap = other.recap()
        assert recap["exit"] == 5
        reason = f"spark{rank + 1} is locked: playbooks/deploy.yml by carol@x"
        assert recap["msg"].startswith(f"spark{rank + 1} (rank {rank}) failed: {reason}")
        assert (other.said(), other.locked) == ("", False)


def test_two_deploys_of_the_same_hosts_do_not_deadlock(tmp_path: Path) -> None:
    """Each has the lock of one host and waits for the other's: the wait has a limit, and at least one of them gives up."""
    value, second = Group(tmp_path, name="one", join_s=8), Group(tmp_path, name="two", join_s=8)
    second.members = [type(member)(member.home, member.name) for member in value.members]
    try:
        value.begin(0, *STEPS)
        second.begin(1, *STEPS)
        for member in (value.members[0], second.members[1]):
            wait_until(lambda member=member: member.locked, "each has a lock")
        value.begin(1, *STEPS, wait_s=60)
        second.begin(0, *STEPS, wait_s=60)
        for members in (value.members, second.members):
            for member in members:
                assert member.process is not None
                member.process.wait(120)
        for member in value.members:
            assert not member.locked
            exit_codes = sorted(event["exit"] for event in member.story() if event["event"] == "recap")
            assert exit_codes in ([5, 5], [0, 5])  # the other may come in time once one has let go
            assert member.said() == "touched\n" * exit_codes.count(0)
        assert value.members[0].said() == value.members[1].said()
    finally:
        value.end()
        second.end()


def test_stop_ends_the_wait_for_members(tmp_path: Path) -> None:
    with running_group(tmp_path, world=3) as three:
        head, worker = three.begin(0, *STEPS), three.begin(1, *STEPS)
        wait_until(lambda: "waiting for spark3 (rank 2)" in worker.notes(), "it waits")
        worker.stop()
        assert worker.recap()["msg"].startswith("stopped on request, before the first task")
        recap = head.recap()
        assert recap["msg"] == "spark2 (rank 1) failed: stopped on request, before the first task."
        assert head.said() == worker.said() == ""


def test_member_killed_while_joining_fails_the_join_for_all(tmp_path: Path) -> None:
    with running_group(tmp_path, world=3) as three:
        head, worker = three.begin(0, *STEPS), three.begin(1, *STEPS)
        wait_until(lambda: "waiting for spark3 (rank 2)" in worker.notes(), "it has come")
        worker.kill(signal.SIGKILL)
        assert head.recap()["msg"] == "lost spark2 (rank 1): connection closed."
        assert head.said() == ""


def test_port_in_use_is_refused_with_its_process(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair, socket.create_server(("127.0.0.1", pair.port)):
        head = pair.begin(0, *STEPS)
        recap = head.recap()
        assert recap["exit"] == 5
        start = f"port {pair.port} of spark1, the cluster's barrier port, is in use by "
        assert recap["msg"].startswith(start) and "(pid " in recap["msg"]
        assert head.said() == ""


def test_address_missing_on_the_head_is_refused(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        plan = pair.plan(0, *STEPS)
        assert plan.cluster is not None
        elsewhere = replace(plan, cluster=replace(plan.cluster, address="192.0.2.7"))
        recap = pair.members[0].start(elsewhere).recap()
        assert recap["exit"] == 5
        assert recap["msg"].startswith("spark1 has no address 192.0.2.7, which the cluster's members connect to.")


@pytest.mark.parametrize("token", ["", "short", SECRET.upper()])
def test_invalid_cluster_token_is_refused(tmp_path: Path, token: str) -> None:
    with running_group(tmp_path) as pair:
        recap = pair.members[0].start(pair.plan(0, *STEPS), token=token).recap()
        assert recap["exit"] == 5
        assert "the secret CLUSTER_TOKEN is not 64 hexadecimal digits" in recap["msg"]
