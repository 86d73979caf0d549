"""Barriers of a cluster's runs: all members reach a barrier, or it fails for all and each runs its rescue."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runner.cluster.members import (
    SECRET,
    Group,
    barrier_task,
    prepare_task,
    running_group,
    shell_task,
    swap_block,
    write_task,
)
from tests.waiting import wait_until

RESCUE = (barrier_task("all stopped", phase="rescue"), write_task("restored"))


@pytest.mark.parametrize("world", [2, 3])
def test_members_meet_and_share_values(tmp_path: Path, world: int) -> None:
    with running_group(tmp_path, world=world) as group:
        share = {"host": "{{ which.out }}"}
        steps = (
            shell_task("Which", "basename $PWD", register="which"),
            barrier_task("prepared", share=share, open=("share",), register="met"),
            write_task("done"),
            barrier_task("verified"),
        )
        members = group.start(*steps)
        assert group.exit_codes() == [0] * world
        for member in members:
            event = member.finished("Meet at prepared")
            assert event and event["data"]["members"] == {host: {"host": host} for host in group.hosts}
            assert member.written() == "done\n"


def test_no_member_continues_before_all_have_arrived(pair: Group) -> None:
    head = pair.begin(0, barrier_task("prepared"), write_task("done"))
    worker = pair.begin(1, prepare_task(), barrier_task("prepared"))
    head.wait_for_note("waiting for spark2 (rank 1)")
    assert head.written() == ""
    worker.let_prepare()
    assert pair.exit_codes() == [0, 0]
    assert head.written() == "done\n"


def test_failure_of_a_member_fails_the_barrier_and_all_run_their_rescue(three: Group) -> None:
    pull = shell_task("Pull image by digest", "echo no space left >&2; exit 3")
    for rank, steps in ((0, ()), (2, ()), (1, (pull,))):
        three.begin(rank, swap_block(*steps, barrier_task("prepared"), rescue=RESCUE))
    assert three.exit_codes() == [0, 0, 0]
    for rank in (0, 2):
        message = "spark2 (rank 1) failed at 'Pull image by digest': sh exited with code 3: no space left."
        assert three.members[rank].outcome("Meet at prepared") == ("failed", message)
    for member in three.members:
        assert member.outcome("Meet at all stopped")[0] == "ok"
        assert member.written() == "restored\n"


def test_failure_in_the_rescue_fails_its_barriers(pair: Group) -> None:
    rescue = (barrier_task("all restored", phase="rescue"),)
    head = pair.begin(0, swap_block(barrier_task("prepared"), rescue=rescue))
    failing_rescue = (shell_task("Restore previous server", "exit 7"), *rescue)
    pair.begin(1, swap_block(shell_task("Pull", "exit 3"), barrier_task("prepared"), rescue=failing_rescue))
    assert pair.exit_codes() == [1, 1]
    message = head.outcome("Meet at all restored")[1]
    assert message == "spark2 (rank 1) failed at 'Restore previous server': sh exited with code 7: no output."


def test_unrescued_failure_is_reported_and_ignored_failure_is_not(pair: Group) -> None:
    head = pair.begin(0, barrier_task("one"), barrier_task("two"))
    ignored = shell_task("Try", "exit 1", ignore_errors=True)
    pair.begin(1, ignored, barrier_task("one"), shell_task("Pull", "exit 3"), barrier_task("two"))
    assert pair.exit_codes() == [1, 1]
    assert head.outcome("Meet at one")[0] == "ok"
    assert head.outcome("Meet at two")[1] == "spark2 (rank 1) failed at 'Pull': sh exited with code 3: no output."


def test_no_log_output_is_not_sent_to_members(pair: Group) -> None:
    head = pair.begin(0, barrier_task("one"))
    pair.begin(1, shell_task("Log in", "echo password1234 >&2; exit 1", no_log=True), barrier_task("one"))
    assert head.recap()["msg"] == "spark2 (rank 1) failed at 'Log in': hidden by no_log."


def test_secrets_are_not_sent_to_members(pair: Group) -> None:
    """A member prints the deploy's token, which reaches no other member, no file and no event."""
    print_secret = shell_task("Log in", f"echo {SECRET} >&2; exit 1")
    head = pair.begin(0, barrier_task("one", register="met"), barrier_task("two"))
    pair.begin(1, barrier_task("one", share={"key": SECRET}), print_secret, barrier_task("two"))
    pair.exit_codes()
    assert head.recap()["msg"] == "spark2 (rank 1) failed at 'Log in': sh exited with code 1: ••••."
    event = head.finished("Meet at one")
    assert event and event["data"]["members"]["spark2"] == {"key": "••••"}
    for member in pair.members:
        files = b"".join(path.read_bytes() for path in member.home.rglob("*") if path.is_file())
        assert files.replace(b"echo " + SECRET.encode(), b"").count(SECRET.encode()) == 0


def test_barrier_timeout_fails_it_for_all(three: Group) -> None:
    short, long = barrier_task("prepared", timeout_s=0.5), barrier_task("prepared")
    head = three.begin(0, swap_block(long, rescue=RESCUE))
    impatient = three.begin(1, prepare_task(), swap_block(short, rescue=RESCUE))
    late = three.begin(2, prepare_task(), swap_block(long, rescue=RESCUE))
    for member in (impatient, late):
        member.wait_until_preparing()
    wait_until(lambda: head.notes()[-1:] == ["waiting for spark2 (rank 1), spark3 (rank 2)"], "the head at the barrier")
    impatient.let_prepare()
    wait_until(lambda: head.finished("Meet at prepared"), "the failure at the head")
    late.let_prepare()
    message = "spark3 (rank 2) did not reach barrier 'prepared' within 0.5 s."
    assert three.exit_codes() == [0, 0, 0]
    for member in three.members:
        assert member.outcome("Meet at prepared") == ("failed", message)
        assert member.written() == "restored\n"


def test_run_that_ends_before_the_barrier_fails_it(pair: Group) -> None:
    head, worker = pair.begin(0, barrier_task("prepared")), pair.begin(1, shell_task("Prepare", "true"))
    assert worker.recap()["exit"] == 0
    assert head.recap()["msg"] == "spark2 (rank 1) ended its run before barrier 'prepared'."


def test_differing_values_fail_the_barrier(pair: Group) -> None:
    same = {"engine": "0.32.0", "revision": {"commit": "ab", "files": 3}}
    for rank, digest in enumerate(("sha256:aaa", "sha256:bbb")):
        values = {**same, "image_digest": digest}
        pair.begin(rank, barrier_task("prepared", share=values, compare=[*values]))
    for member in pair.members:
        recap = member.recap()
        assert (recap["exit"], recap["msg"]) == (5, "image digest differs: spark1 sha256:aaa, spark2 sha256:bbb.")


def test_stop_of_a_member_counts_as_its_failure(pair: Group) -> None:
    head = pair.begin(0, swap_block(barrier_task("prepared"), rescue=RESCUE))
    worker = pair.begin(1, swap_block(prepare_task(), barrier_task("prepared"), rescue=RESCUE))
    head.wait_for_note("waiting for spark2 (rank 1)")
    worker.wait_until_preparing()
    worker.stop()
    worker.let_prepare()
    assert pair.exit_codes() == [0, 1]
    message = "spark2 (rank 1) failed: stopped on request, before: Meet at prepared."
    assert head.outcome("Meet at prepared")[1] == message
    assert (head.written(), worker.written()) == ("restored\n", "restored\n")


def test_stop_ends_the_wait_at_a_barrier(pair: Group) -> None:
    head = pair.begin(0, barrier_task("prepared"))
    worker = pair.begin(1, prepare_task(), barrier_task("prepared"))
    worker.wait_until_preparing()
    head.wait_for_note("waiting for spark2 (rank 1)")
    head.stop()
    wait_until(lambda: head.finished("Meet at prepared"), "the end of the wait")
    worker.let_prepare()
    assert "spark1 (rank 0) failed at 'Meet at prepared': stopped on request" in worker.recap()["msg"]
    assert head.recap()["msg"].startswith("stopped on request, while waiting at barrier 'prepared'")


def test_retries_end_if_another_member_fails(pair: Group) -> None:
    patient = shell_task("Wait", "touch waiting; exit 1", retries=100_000, delay_s=0.05)
    head = pair.begin(0, swap_block(patient, rescue=RESCUE))
    pull = shell_task("Pull", f"until [ -e {head.home}/waiting ]; do sleep 0.05; done; exit 3")
    pair.begin(1, swap_block(pull, rescue=RESCUE))
    assert pair.exit_codes() == [0, 0]
    assert head.outcome("Wait")[1] == "spark2 (rank 1) failed at 'Pull': sh exited with code 3: no output."


def test_runs_continue_without_the_laptop(pair: Group) -> None:
    members = pair.start(prepare_task(), barrier_task("prepared"), write_task("done"))
    for member in members:
        member.wait_until_preparing()
        member.kill_laptop()
    for member in members:
        member.let_prepare()
    assert pair.exit_codes() == [0, 0]
    assert [member.written() for member in members] == ["done\n", "done\n"]


def test_barrier_is_skipped_in_check_mode(pair: Group) -> None:
    member = pair.begin(0, barrier_task("prepared"), check=True)
    assert member.recap()["exit"] == 0
    assert member.outcome("Meet at prepared") == ("skipped", "members do not wait for each other in check mode")


def test_barrier_is_skipped_without_a_cluster(pair: Group) -> None:
    member = pair.members[0].start(replace(pair.plan(0, barrier_task("prepared")), cluster=None))
    assert member.recap()["exit"] == 0
    assert member.outcome("Meet at prepared") == ("skipped", "this plan has no cluster")


def test_barrier_of_a_play_with_become(pair: Group) -> None:
    members = pair.start(barrier_task("prepared", become=True))
    assert pair.exit_codes() == [0, 0]
    assert members[0].outcome("Meet at prepared") == ("ok", "all 2 members")


def test_listener_closes_after_all_have_joined(pair: Group) -> None:
    members = pair.start(prepare_task(), barrier_task("prepared"))
    for member in members:
        member.wait_until_preparing()
    with socket.socket() as stranger:
        assert stranger.connect_ex(("127.0.0.1", pair.port)) != 0
    for member in members:
        member.let_prepare()
    assert pair.exit_codes() == [0, 0]
