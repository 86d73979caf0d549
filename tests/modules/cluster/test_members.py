"""Values that members share and compare at a barrier, over channels to a coordinator on 127.0.0.1."""

import contextlib
import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Failed, Refused, SparkwrightError
from sparkwright.host.cluster.channel import Channel
from sparkwright.host.cluster.coordinator import Coordinator
from sparkwright.host.records import server_keys
from sparkwright.modules.cluster.members import Barrier, KeepHealToken
from sparkwright.modules.server.start import WaitReady
from sparkwright.protocol.cluster import Cluster
from sparkwright.protocol.result import Result
from sparkwright.secret import Secret
from sparkwright.trust.redact import Redactor
from tests.modules.context import RecordingContext
from tests.modules.docker_engine import container_attrs, docker_engine
from tests.remote.sshd import free_port
from tests.runner.cluster.members import SECRET
from tests.waiting import wait_until

Outcome = Result | SparkwrightError


@contextlib.contextmanager
def open_channels(world: int) -> Iterator[list[Channel]]:
    """Yield the joined channels of all members."""
    hosts, port = tuple(f"spark{n + 1}" for n in range(world)), free_port()
    clusters = [Cluster("pair", rank, hosts, "127.0.0.1", port, join_s=60) for rank in range(world)]
    head = Coordinator(clusters[0], Secret(SECRET), print)
    redactor = Redactor(["geheim-geheim"])
    channels = [Channel(cluster, Secret(SECRET), note=print, redactor=redactor) for cluster in clusters]
    run_concurrently([channel.join for channel in channels])
    try:
        yield channels
    finally:
        run_concurrently([channel.close for channel in channels])
        head.close()


def run_concurrently(calls: list[Any]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def run_barrier(home: Path, *shares: dict[str, Any], notes: list[str] | None = None, **args: Any) -> list[Outcome]:
    """Run a barrier with the values that each member shares, and return their outcomes. Appends their notes to `notes`."""
    outcomes: dict[int, Outcome] = {}

    def run(rank: int, channel: Channel) -> None:
        context = RecordingContext(home)
        context.cluster = channel
        try:
            outcomes[rank] = Barrier().run(Barrier.Args("prepared", share=shares[rank], timeout_s=60, **args), context)
        except SparkwrightError as error:
            outcomes[rank] = error
        if notes is not None:
            notes.extend(context.notes)

    with open_channels(len(shares)) as channels:
        run_concurrently([functools.partial(run, *item) for item in enumerate(channels)])
    return [outcomes[rank] for rank in range(len(shares))]


def test_equal_values_pass(tmp_path: Path) -> None:
    share = {"digest": "sha256:aa", "model": {"b": [1, None], "a": True}, "not compared": 5}
    other = {**share, "not compared": 6}
    for outcome in run_barrier(tmp_path, share, other, compare=["digest", "model"]):
        assert isinstance(outcome, Result)
        assert outcome.data["members"] == {"spark1": share, "spark2": other}


@pytest.mark.parametrize(
    ("shares", "message"),
    [
        (["sha256:aa", "sha256:bb"], "image digest differs: spark1 sha256:aa, spark2 sha256:bb."),
        ([1, "1"], "image digest differs: spark1 1, spark2 1."),
        ([True, 1], "image digest differs: spark1 true, spark2 1."),
        (["a", "b", "a"], "image digest differs: spark1 a, spark2 b, spark3 a."),
        ([None, "a"], "image digest differs: spark1 null, spark2 a."),
        (["x\x1b]52;c;aGk=\x07", "a"], "image digest differs: spark1 x\\x1b]52;c;aGk=\\x07, spark2 a."),
        (
            ["y" * 101, "y" * 102],
            f"image digest differs: spark1 {'y' * 80}... (21 more characters), spark2 {'y' * 80}... (22 more characters).",
        ),
    ],
)
def test_difference_is_reported_identically_on_all_members(tmp_path: Path, shares: list[Any], message: str) -> None:
    outcomes = run_barrier(tmp_path, *({"image_digest": share} for share in shares), compare=["image_digest"])
    assert [str(outcome) for outcome in outcomes] == [message] * len(shares)


def test_all_differences_are_reported_together(tmp_path: Path) -> None:
    outcomes = run_barrier(tmp_path, {"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 1, "c": 3}, compare=["a", "b", "c"])
    assert str(outcomes[0]) == "a differs: spark1 1, spark2 2; c differs: spark1 1, spark2 3."


def test_warnings_name_differences_and_ignore_unknown_values(tmp_path: Path) -> None:
    versions = [("6.14", "580.95"), ("6.17", None), ("6.14", "")]
    shares = [{"kernel": kernel, "driver": driver} for kernel, driver in versions]
    notes: list[str] = []
    outcomes = run_barrier(tmp_path, *shares, warn=["kernel", "driver"], notes=notes)
    assert all(isinstance(outcome, Result) for outcome in outcomes), outcomes
    assert notes == ["kernel differs: spark1 6.14, spark2 6.17, spark3 6.14. It should be the same on all members."] * 3


def test_members_learn_who_shares_equal_values(tmp_path: Path) -> None:
    outcomes = run_barrier(tmp_path, {"group": ["a", "b"]}, {"group": ["a", "b"]}, {"group": []})
    groups = [outcome.data["alike"]["group"] for outcome in outcomes if isinstance(outcome, Result)]
    assert groups == [["spark1", "spark2"], ["spark1", "spark2"], ["spark3"]]


def test_member_may_pass_a_barrier_without_waiting(tmp_path: Path) -> None:
    passed = threading.Event()
    with open_channels(2) as (head, worker):
        assert worker.arrive("later", {}, timeout_s=0, wait=False) == {}

        def arrive() -> None:
            head.arrive("later", {"a": 1}, timeout_s=60)
            passed.set()

        waiter = threading.Thread(target=arrive)
        waiter.start()
        waiter.join(60)
    assert passed.is_set()


def test_compared_values_must_be_shared(tmp_path: Path) -> None:
    context = RecordingContext(tmp_path)
    with open_channels(2) as (channel, _):
        context.cluster = channel
        with pytest.raises(Refused, match="`compare` contains names that are not in `share`: kernel"):
            Barrier().run(Barrier.Args("prepared", share={"a": 1}, compare=["a", "kernel"]), context)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"name": "a" * 65}, "is not a valid barrier name"),
        ({"name": "a/b"}, "is not a valid barrier name"),
        ({"name": "prepared", "share": {"a": "x" * 50_000}}, "is larger than 48 KiB"),
        ({"name": "prepared", "share": {"a": [[[[[[[[[[1]]]]]]]]]]}}, "is nested too deeply"),
    ],
)
def test_unsendable_value_fails_and_keeps_the_connection(tmp_path: Path, args: dict[str, Any], message: str) -> None:
    context = RecordingContext(tmp_path)
    with open_channels(2) as (channel, other):
        context.cluster = channel
        with pytest.raises(SparkwrightError, match=message):
            Barrier().run(Barrier.Args(**args), context)
        run_concurrently([lambda: channel.arrive("next", {}, 60), lambda: other.arrive("next", {}, 60)])
        with pytest.raises(SparkwrightError, match="this run has already passed barrier 'next'"):
            channel.arrive("next", {}, 60)


def test_failure_of_another_member_ends_the_wait_for_an_engine_except_during_a_rescue(tmp_path: Path) -> None:
    with open_channels(2) as (channel, other), docker_engine(container_attrs()) as docker_host:
        context = RecordingContext(tmp_path, docker_host=docker_host)
        context.cluster = channel
        other.fail("Start the server", "the engine exited (exit code 1).")
        wait_until(channel.remote_failure, "the failure")
        with pytest.raises(
            Failed, match=r"^spark2 \(rank 1\) failed at 'Start the server': the engine exited \(exit code 1\)\.$"
        ):
            WaitReady().run(WaitReady.Args("qwen35", "http://127.0.0.1:1"), context)
        channel.fail("Wait for the server", "the previous server is restored")
        context.check_failures()


def test_shared_secrets_are_masked(tmp_path: Path) -> None:
    outcomes = run_barrier(tmp_path, {"key": "geheim-geheim"}, {"key": "x"})
    assert isinstance(outcomes[1], Result)
    assert outcomes[1].data["members"]["spark1"] == {"key": "••••"}


def store_heal_token(home: Path, token: str, *, check: bool = False) -> tuple[bool, str]:
    """Run the module with this token, and return whether it reports a change, and the stored token."""
    secrets = {server_keys.HEAL_TOKEN_SECRET: Secret(token)} if token else {}
    context = RecordingContext(home, check=check, secrets=secrets)
    result = KeepHealToken().run(KeepHealToken.Args(), context)
    return result.changed, server_keys.load_heal_token(context.state).reveal()


def test_only_a_different_heal_token_is_a_change(tmp_path: Path) -> None:
    old, new = "a" * 64, "b" * 64
    assert store_heal_token(tmp_path, "", check=True) == (False, "")
    assert store_heal_token(tmp_path, old, check=True) == (True, "")
    assert store_heal_token(tmp_path, old) == (True, old)
    assert store_heal_token(tmp_path, old) == store_heal_token(tmp_path, old, check=True) == (False, old)
    assert store_heal_token(tmp_path, new, check=True) == store_heal_token(tmp_path, "", check=True) == (True, old)
    assert store_heal_token(tmp_path, new) == (True, new)
    assert store_heal_token(tmp_path, "") == (True, "")
