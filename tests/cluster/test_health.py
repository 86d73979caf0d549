"""The health checks of a cluster's hosts: each of its own rank, and a restart of all without a laptop."""

import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.host.records import server_keys
from sparkwright.host.state import StateFolder
from tests.cluster.checks import Checks
from tests.cluster.pair import ClusterPair

RANK_LOST = "a rank of its cluster is gone or hung"


@pytest.fixture
def checks(pair: ClusterPair) -> Checks:
    """Return the checks of a deployed cluster, installed."""
    value = Checks(pair)
    pair.deployed()
    answer = value.install()
    assert answer.code == 0, answer.out + answer.err
    return value


def states(checks: Checks) -> dict[str, str]:
    return {host: row["state"] for host, row in checks.status().items()}


def start_times(pair: ClusterPair) -> dict[str, str]:
    return {host: pair.container(host)["State"]["StartedAt"] for host in pair.names}


def test_dead_rank_is_named_and_all_ranks_are_restarted_within_the_budget(pair: ClusterPair, checks: Checks) -> None:
    assert states(checks) == {"one": "ok", "two": "ok"}
    worker = checks.run("two").record
    assert (worker.rank.group_rank, worker.rank.group_world, worker.server.health_status) == (1, 2, None)
    before = pair.running()

    pair.docker("two", "kill", pair.name)
    assert f"rank 1 of pair ({pair.name}) exited (exit code 137)" in checks.run("two").out
    first = checks.run("one")
    assert first.record.seen == "down" and RANK_LOST in first.out  # found by the first check; the second may act
    assert states(checks) == {"one": "down", "two": "down"}
    record = checks.run_all()
    assert all("restarted (run" in item.record.healed for item in record.values()), record
    assert pair.running() == before and pair.generates()
    assert states(checks) == {"one": "ok", "two": "ok"}
    for host in pair.names:
        newest = pair.history(host)[0]
        assert (newest["what"], newest["who"]) == ("healed", "the health check")
        assert "two: rank 1 of pair" in newest["why"] and "exited (exit code 137)" in newest["why"]

    pair.docker("two", "kill", pair.name)
    spent = [checks.run("one") for _ in range(2)][-1]
    assert "less than --heal-every ago" in spent.record.healed
    assert "two" not in pair.running()


def test_rank_that_exited_with_0_is_restarted_only_with_all_checks(pair: ClusterPair, checks: Checks) -> None:
    pair.docker("two", "stop", pair.name)
    assert "rank 1 of pair" in (out := checks.run("two").out) and "(exit code 0), while in service" in out
    checks.run("one")
    since = start_times(pair)
    checks.change("one", every_s=1.0)
    alone = checks.run("one")
    assert "not restarted: two (rank 1) did not join within 2 s" in alone.record.healed
    assert start_times(pair) == since
    assert not (checks.state("one").read("health-remembered") or {})["heals"]
    assert [row["what"] for row in pair.history("one")] == ["verified"]

    checks.change("one", every_s=60.0)
    waits = checks.begin("one")
    checks.waiting(waits)
    pair.deployed()  # who comes while it waits goes first
    assert "not restarted: playbooks/cluster/deploy.yml by" in checks.end("one", waits).out
    assert {host: checks.run(host).record.state for host in pair.names} == {"one": "ok", "two": "ok"}


def test_hung_group_is_detected_by_one_check(pair: ClusterPair, checks: Checks) -> None:
    """Requests run, no token comes, /health answers 200."""
    checks.change("one", limits={"token_s": 1.0, "frozen_s": 2.0})
    fault = pair.folder / "run/sandbox-fault"
    fault.parent.mkdir()
    fault.write_text("wedge")
    with client_request(pair):
        pair.docker("one", "cp", str(fault.parent), f"{pair.name}:/")
        record = checks.run("one")
    assert (record.record.seen, record.record.cure) == ("stalled", "restart"), record
    assert record.record.server.health_status == 200 and RANK_LOST in record.out


def test_heal_token_changes_with_each_install_and_is_removed_with_the_timer(pair: ClusterPair, checks: Checks) -> None:
    def read_tokens() -> set[str]:
        return {server_keys.load_heal_token(checks.state(host)).reveal() for host in pair.names}

    first = read_tokens()
    assert len(first) == 1
    second_run = checks.install("--heal", "restart", "--json")
    assert len(read_tokens()) == 1 and read_tokens() != first
    written = [path.read_text(errors="replace") for host in pair.names for path in files(checks.state(host))]
    assert not any(item in text for item in read_tokens() | first for text in [second_run.out, *written])
    assert checks.install("--heal", "none").code == 0
    assert read_tokens() == {""}
    assert pair.run("health.uninstall", "--host", "two").code == 0


def files(state: StateFolder) -> Iterator[Path]:
    """Yield all files that a host keeps, except the secret itself."""
    yield from (path for path in state.path.rglob("*") if path.is_file() and path.stem != server_keys.HEAL_TOKEN_RECORD)


@contextlib.contextmanager
def client_request(pair: ClusterPair) -> Iterator[None]:
    """Run a client's request, which the engine has begun, for the length of the block."""
    body = json.dumps({"model": "glm", "prompt": "1", "max_tokens": 4000}).encode()
    url = f"http://127.0.0.1:{pair.port}"

    def send_request() -> None:
        with contextlib.suppress(OSError):
            request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=60).close()

    thread = threading.Thread(target=send_request)
    thread.start()
    while b"num_requests_running{" not in (
        page := urllib.request.urlopen(f"{url}/metrics", timeout=10).read()
    ) or not any(
        float(line.split()[-1]) for line in page.splitlines() if line.startswith(b"vllm:num_requests_running")
    ):
        assert thread.is_alive()
    try:
        yield
    finally:
        pair.docker("one", "kill", pair.name)
        thread.join(60)
