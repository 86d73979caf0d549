"""All members' runs join before the first task, each with its host's lock; otherwise none of them changes anything."""

import signal
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright.host.runs import lock
from tests.runner.cluster.members import SECRET, Group, Member, barrier_task, running_group, write_task
from tests.waiting import wait_until

STEPS = (write_task("touched"), barrier_task("prepared"))


def test_head_names_the_missing_member_and_gives_up_unchanged(tmp_path: Path) -> None:
    with running_group(tmp_path, join_s=3) as pair:
        head = pair.begin(0, *STEPS)
        recap = head.recap()
        assert (recap["exit"], recap["msg"]) == (5, "spark2 (rank 1) did not join within 3 s.")
        assert "waiting for spark2 (rank 1)" in head.notes()
        assert (head.written(), head.locked) == ("", False)


def test_worker_gives_up_without_a_head(tmp_path: Path) -> None:
    with running_group(tmp_path, join_s=3) as pair:
        worker = pair.begin(1, *STEPS)
        recap = worker.recap()
        message = f"spark1 (rank 0) did not answer within 3 s (127.0.0.1 port {pair.port}: connection refused)."
        assert (recap["exit"], recap["msg"].startswith(message)) == (5, True)
        assert f"waiting for spark1 (rank 0) at 127.0.0.1 port {pair.port}: connection refused" in worker.notes()
        assert (worker.written(), worker.locked) == ("", False)


def test_first_timeout_ends_the_wait_of_all(three: Group) -> None:
    head = three.begin(0, *STEPS)
    head.wait_for_note("waiting for spark2 (rank 1), spark3 (rank 2)")
    worker = three.begin(1, *STEPS, cluster={"join_s": 5.0})
    for member in (head, worker):
        recap = member.recap()
        assert (recap["exit"], recap["msg"]) == (5, "spark3 (rank 2) did not join within 5 s.")
        assert member.written() == ""


@pytest.mark.parametrize("rank", [0, 1])
def test_locked_host_fails_the_join_for_all(pair: Group, rank: int) -> None:
    locked, other = pair.members[rank], pair.members[1 - rank]
    owner = lock.LockOwner("playbooks/deploy.yml", "carol@x", "run-c", 7, 1.0)
    with lock.acquire(locked.state, owner, host="x"):
        pair.start(*STEPS)
        assert pair.exit_codes() == [5, 5]
    reason = f"spark{rank + 1} is locked: playbooks/deploy.yml by carol@x"
    assert other.recap()["msg"].startswith(f"spark{rank + 1} (rank {rank}) failed: {reason}")
    assert (other.written(), other.locked) == ("", False)


def wait_until_locked(member: Member) -> None:
    wait_until(lambda: member.locked, f"{member.name} has its lock")


def test_two_deploys_of_the_same_hosts_do_not_deadlock(tmp_path: Path) -> None:
    """Each has a host's lock and waits for the other's; the wait has a limit, and at least one deploy gives up."""
    with (
        running_group(tmp_path, name="one", join_s=8) as first,
        running_group(tmp_path, name="two", join_s=8) as second,
    ):
        first.begin(0, *STEPS)
        second.begin(1, *STEPS)
        for member in (first.members[0], second.members[1]):
            wait_until_locked(member)
        first.begin(1, *STEPS, wait_s=60)
        second.begin(0, *STEPS, wait_s=60)
        for member in (*first.members, *second.members):
            assert member.process is not None
            member.process.wait(120)
        for member in first.members:
            assert not member.locked
            exit_codes = sorted(event["exit"] for event in member.journal_events() if event["event"] == "recap")
            assert exit_codes in ([5, 5], [0, 5])  # a deploy may get the lock in time after the other gave up
            assert member.written() == "touched\n" * exit_codes.count(0)
        assert first.members[0].written() == first.members[1].written()


def test_stop_ends_the_wait_for_members(three: Group) -> None:
    head, worker = three.begin(0, *STEPS), three.begin(1, *STEPS)
    worker.wait_for_note("waiting for spark3 (rank 2)")
    worker.stop()
    assert worker.recap()["msg"].startswith("stopped on request, before the first task")
    assert head.recap()["msg"] == "spark2 (rank 1) failed: stopped on request, before the first task."
    assert head.written() == worker.written() == ""


def test_member_killed_while_joining_fails_the_join_for_all(three: Group) -> None:
    head, worker = three.begin(0, *STEPS), three.begin(1, *STEPS)
    worker.wait_for_note("waiting for spark3 (rank 2)")
    worker.kill(signal.SIGKILL)
    assert head.recap()["msg"] == "lost spark2 (rank 1): connection closed."
    assert head.written() == ""


def test_port_in_use_is_refused_with_its_process(pair: Group) -> None:
    with socket.create_server(("127.0.0.1", pair.port)):
        recap = pair.begin(0, *STEPS).recap()
    assert recap["exit"] == 5
    start = f"port {pair.port} of spark1, the cluster's barrier port, is in use by "
    assert recap["msg"].startswith(start) and "(pid " in recap["msg"]
    assert pair.members[0].written() == ""


def test_address_missing_on_the_head_is_refused(pair: Group) -> None:
    plan = pair.plan(0, *STEPS)
    assert plan.cluster is not None
    recap = pair.members[0].start(replace(plan, cluster=replace(plan.cluster, address="192.0.2.7"))).recap()
    assert recap["exit"] == 5
    assert recap["msg"].startswith("spark1 has no address 192.0.2.7, which the cluster's members connect to.")


@pytest.mark.parametrize("token", ["", "short", SECRET.upper()], ids=["empty", "short", "upper case"])
def test_invalid_cluster_token_is_refused(pair: Group, token: str) -> None:
    recap = pair.members[0].start(pair.plan(0, *STEPS), token=token).recap()
    assert recap["exit"] == 5
    assert "the secret CLUSTER_TOKEN is not 64 hexadecimal digits" in recap["msg"]
