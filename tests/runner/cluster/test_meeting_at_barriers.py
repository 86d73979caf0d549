"""Barriers of a cluster's runs: all reach one, or it fails for all and each runs its rescue."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.runner.cluster.members import SECRET, barrier_task, running_group, shell_task, swap_block
from tests.waiting import wait_until

SAY_COMMAND = "echo {} >> said"
RESCUE = (
    barrier_task("all stopped", phase="rescue"),
    shell_task("Restore previous server", SAY_COMMAND.format("restored")),
)


@pytest.mark.parametrize("world", [2, 3])
def test_members_meet_and_share_values(tmp_path: Path, world: int) -> None:
    with running_group(tmp_path, world=world) as pair:
        share = {"host": "{{ which.out }}"}
        steps = (
            shell_task("Which", "basename $PWD", register="which"),
            barrier_task("prepared", share=share, open=("share",), register="met"),
            shell_task("Go on", SAY_COMMAND.format("on")),
            barrier_task("verified"),
        )
        members = pair.start(*steps)
        assert [member.recap()["exit"] for member in members] == [0] * world
        for member in members:
            assert member.registered("Meet at prepared")["members"] == {host: {"host": host} for host in pair.hosts}
            assert member.said() == "on\n"


def test_no_member_continues_before_all_have_arrived(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        head = pair.begin(0, barrier_task("prepared"), shell_task("Go on", SAY_COMMAND.format("on")))
        worker = pair.begin(
            1, shell_task("Prepare", "until [ -e ready ]; do sleep 0.05; done"), barrier_task("prepared")
        )
        wait_until(lambda: "waiting for spark2 (rank 1)" in head.notes(), "the head says whom it waits for")
        assert head.said() == ""
        (worker.home / "ready").touch()
        assert (head.recap()["exit"], worker.recap()["exit"]) == (0, 0)
        assert head.said() == "on\n"


def test_failure_of_a_member_fails_the_barrier_and_all_run_their_rescue(tmp_path: Path) -> None:
    with running_group(tmp_path, world=3) as three:
        good = swap_block(barrier_task("prepared"), rescue=RESCUE)
        members = [three.begin(rank, good) for rank in (0, 2)]
        bad = swap_block(
            shell_task("Pull image by digest", "echo no space left >&2; exit 3"),
            barrier_task("prepared"),
            rescue=RESCUE,
        )
        members.append(three.begin(1, bad))
        assert [member.recap()["exit"] for member in members] == [0, 0, 0]
        for member in members[:2]:
            message = "spark2 (rank 1) failed at 'Pull image by digest': sh exited with code 3: no space left."
            assert member.outcome("Meet at prepared") == ("failed", message)
        for member in members:
            assert member.outcome("Meet at all stopped")[0] == "ok"
            assert member.said() == "restored\n"


def test_failure_in_the_rescue_fails_its_barriers(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        rescue = (barrier_task("all restored", phase="rescue"),)
        head = pair.begin(0, swap_block(barrier_task("prepared"), rescue=rescue))
        broken_rescue = (shell_task("Restore previous server", "exit 7"), *rescue)
        worker = pair.begin(1, swap_block(shell_task("Pull", "exit 3"), barrier_task("prepared"), rescue=broken_rescue))
        assert (head.recap()["exit"], worker.recap()["exit"]) == (1, 1)
        message = head.outcome("Meet at all restored")[1]
        assert message == "spark2 (rank 1) failed at 'Restore previous server': sh exited with code 7: no output."


def test_unrescued_failure_is_reported_and_ignored_failure_is_not(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        head = pair.begin(0, barrier_task("one"), barrier_task("two"))
        ignored = shell_task("Try", "exit 1", ignore_errors=True)
        worker = pair.begin(1, ignored, barrier_task("one"), shell_task("Pull", "exit 3"), barrier_task("two"))
        assert (head.recap()["exit"], worker.recap()["exit"]) == (1, 1)
        assert head.outcome("Meet at one")[0] == "ok"
        assert head.outcome("Meet at two")[1] == "spark2 (rank 1) failed at 'Pull': sh exited with code 3: no output."


def test_no_log_output_is_not_sent_to_members(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        head = pair.begin(0, barrier_task("one"))
        worker = pair.begin(1, shell_task("Log in", "echo password1234 >&2; exit 1", no_log=True), barrier_task("one"))
        worker.recap()
        assert head.recap()["msg"] == "spark2 (rank 1) failed at 'Log in': hidden by no_log."


def test_secrets_are_not_sent_to_members(tmp_path: Path) -> None:
    """Not even the token of the deploy, which a member prints, reaches another one, a file or an event."""
    with running_group(tmp_path) as pair:
        print_secret = f"echo {SECRET} >&2; exit 1"
        head = pair.begin(0, barrier_task("one", register="met"), barrier_task("two"))
        worker = pair.begin(
            1, barrier_task("one", share={"key": SECRET}), shell_task("Log in", print_secret), barrier_task("two")
        )
        worker.recap()
        assert head.recap()["msg"] == "spark2 (rank 1) failed at 'Log in': sh exited with code 1: ••••."
        assert head.registered("Meet at one")["members"]["spark2"] == {"key": "••••"}
        for item in (head, worker):
            files = b"".join(path.read_bytes() for path in item.home.rglob("*") if path.is_file())
            assert files.replace(b"echo " + SECRET.encode(), b"").count(SECRET.encode()) == 0


def test_barrier_timeout_fails_it_for_all(tmp_path: Path) -> None:
    with running_group(tmp_path, world=3) as three:
        short, slow = barrier_task("prepared", timeout_s=0.5), barrier_task("prepared")
        head = three.begin(0, swap_block(slow, rescue=RESCUE))
        go = shell_task("Prepare", "until [ -e ready ]; do sleep 0.05; done")
        impatient = three.begin(1, go, swap_block(short, rescue=RESCUE))
        late = three.begin(
            2, shell_task("Prepare", "until [ -e ready ]; do sleep 0.05; done"), swap_block(slow, rescue=RESCUE)
        )
        wait_until(lambda: any("Meet" in item.get("name", "") for item in head.story()), "all have come")
        wait_until(lambda: head.notes()[-1:] == ["waiting for spark2 (rank 1), spark3 (rank 2)"], "the head is there")
        (impatient.home / "ready").touch()
        wait_until(lambda: head.outcome("Meet at prepared")[0], "the head learns it")
        (late.home / "ready").touch()
        message = "spark3 (rank 2) did not reach barrier 'prepared' within 0.5 s."
        for member in three.members:
            assert member.recap()["exit"] == 0
            assert member.outcome("Meet at prepared") == ("failed", message)
            assert member.said() == "restored\n"


def test_run_that_ends_before_the_barrier_fails_it(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        head, worker = pair.begin(0, barrier_task("prepared")), pair.begin(1, shell_task("Prepare", "true"))
        assert worker.recap()["exit"] == 0
        assert head.recap()["msg"] == "spark2 (rank 1) ended its run before barrier 'prepared'."


def test_differing_values_fail_the_barrier(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        same = {"engine": "0.32.0", "revision": {"commit": "ab", "files": 3}}
        names = [*same, "image_digest"]
        members = [
            pair.begin(rank, barrier_task("prepared", share={**same, "image_digest": digest}, compare=names))
            for rank, digest in enumerate(("sha256:aaa", "sha256:bbb"))
        ]
        for member in members:
            recap = member.recap()
            assert (recap["exit"], recap["msg"]) == (5, "image digest differs: spark1 sha256:aaa, spark2 sha256:bbb.")


def test_stop_of_a_member_counts_as_its_failure(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        head = pair.begin(0, swap_block(barrier_task("prepared"), rescue=RESCUE))
        wait = shell_task("Prepare", "until [ -e stop ]; do sleep 0.05; done")
        worker = pair.begin(1, swap_block(wait, barrier_task("prepared"), rescue=RESCUE))
        wait_until(lambda: "waiting for spark2 (rank 1)" in head.notes(), "all have come")
        worker.stop()
        (worker.home / "stop").touch()
        assert (head.recap()["exit"], worker.recap()["exit"]) == (0, 1)
        message = "spark2 (rank 1) failed: stopped on request, before: Meet at prepared."
        assert head.outcome("Meet at prepared")[1] == message
        assert (head.said(), worker.said()) == ("restored\n", "restored\n")


def test_stop_ends_the_wait_at_a_barrier(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        head = pair.begin(0, barrier_task("prepared"))
        worker = pair.begin(
            1, shell_task("Prepare", "until [ -e ready ]; do sleep 0.05; done"), barrier_task("prepared")
        )
        wait_until(lambda: "waiting for spark2 (rank 1)" in head.notes(), "it waits")
        head.stop()
        wait_until(lambda: head.outcome("Meet at prepared")[0], "it waits no more")
        (worker.home / "ready").touch()
        assert "spark1 (rank 0) failed at 'Meet at prepared': stopped on request" in worker.recap()["msg"]
        assert head.recap()["msg"].startswith("stopped on request, while waiting at barrier 'prepared'")


def test_retries_end_if_another_member_fails(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        patient = shell_task("Wait", "touch waiting; exit 1", retries=100_000, delay_s=0.05)
        head = pair.begin(0, swap_block(patient, rescue=RESCUE))
        worker = pair.begin(
            1,
            swap_block(
                shell_task("Pull", f"until [ -e {head.home}/waiting ]; do sleep 0.05; done; exit 3"), rescue=RESCUE
            ),
        )
        assert (head.recap()["exit"], worker.recap()["exit"]) == (0, 0)
        assert head.outcome("Wait")[1] == "spark2 (rank 1) failed at 'Pull': sh exited with code 3: no output."


def test_runs_continue_without_the_laptop(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        wait = shell_task("Prepare", "until [ -e ready ]; do sleep 0.05; done")
        members = pair.start(wait, barrier_task("prepared"), shell_task("Go on", SAY_COMMAND.format("on")))
        for member in members:
            wait_until(
                lambda value=member: any(event["event"] == "task_started" for event in value.story()), "it works"
            )
            member.kill_laptop()
        for member in members:
            (member.home / "ready").touch()
        assert [member.recap()["exit"] for member in members] == [0, 0]
        assert [member.said() for member in members] == ["on\n", "on\n"]


def test_barrier_is_skipped_in_check_mode_and_without_a_cluster(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        checking = pair.begin(0, barrier_task("prepared"), check=True)
        assert checking.recap()["exit"] == 0
        assert checking.outcome("Meet at prepared") == ("skipped", "members do not wait for each other in check mode")
    with running_group(tmp_path / "other") as pair:
        value = pair.members[0].start(replace(pair.plan(0, barrier_task("prepared")), cluster=None))
        assert value.recap()["exit"] == 0
        assert value.outcome("Meet at prepared") == ("skipped", "this plan has no cluster")


def test_barrier_of_a_play_with_become(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        members = pair.start(barrier_task("prepared", become=True))
        assert [member.recap()["exit"] for member in members] == [0, 0]
        assert members[0].outcome("Meet at prepared") == ("ok", "all 2 members")


def test_listener_closes_after_all_have_joined(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        wait = shell_task("Prepare", "until [ -e ready ]; do sleep 0.05; done")
        members = pair.start(wait, barrier_task("prepared"))
        for member in members:
            wait_until(
                lambda value=member: any(event["event"] == "task_started" for event in value.story()), "it works"
            )
        with socket.socket() as stranger:
            assert stranger.connect_ex(("127.0.0.1", pair.port)) != 0
        for member in members:
            (member.home / "ready").touch()
        assert [member.recap()["exit"] for member in members] == [0, 0]
