"""The health checks of a cluster's hosts: each checks its own rank, and all are restarted together without a laptop."""

import contextlib
import json
import threading
import urllib.request
from collections.abc import Iterator

import pytest

from sparkwright.host.records import server_keys
from tests.cluster.checks import Checks
from tests.cluster.pair import ClusterPair
from tests.waiting import wait_until

RANK_LOST = "a rank of its cluster is gone or hung"


@pytest.fixture
def checks(pair: ClusterPair) -> Checks:
    """Return the installed checks of a deployed cluster."""
    value = Checks(pair)
    pair.deployed()
    answer = value.install()
    assert answer.code == 0, answer.out + answer.err
    return value


def states(checks: Checks) -> dict[str, str]:
    return {host: row["state"] for host, row in checks.status().items()}


def test_dead_rank_is_named_and_all_ranks_are_restarted_within_the_budget(pair: ClusterPair, checks: Checks) -> None:
    assert states(checks) == {"one": "ok", "two": "ok"}
    worker = checks.run("two").record
    assert (worker.rank.group_rank, worker.rank.group_world, worker.server.health_status) == (1, 2, None)
    before = pair.running()

    pair.docker("two", "kill", pair.name)
    assert f"rank 1 of pair ({pair.name}) exited (exit code 137)" in checks.run("two").out
    first = checks.run("one")
    assert first.record.seen == "down" and RANK_LOST in first.out  # the second check may restart
    assert states(checks) == {"one": "down", "two": "down"}
    results = checks.run_all()
    assert all("restarted (run" in result.record.healed for result in results.values()), results
    assert pair.running() == before and pair.generates()
    assert states(checks) == {"one": "ok", "two": "ok"}
    for host in pair.names:
        newest = pair.history(host)[0]
        assert (newest["what"], newest["who"]) == ("healed", "the health check")
        assert "two: rank 1 of pair" in newest["why"] and "exited (exit code 137)" in newest["why"]

    pair.docker("two", "kill", pair.name)
    checks.run("one")
    assert "less than --heal-every ago" in checks.run("one").record.healed
    assert "two" not in pair.running()


def test_rank_that_exited_with_0_is_restarted_only_with_all_checks(pair: ClusterPair, checks: Checks) -> None:
    pair.docker("two", "stop", pair.name)
    worker = checks.run("two")
    assert "rank 1 of pair" in worker.out and "(exit code 0), while in service" in worker.out
    checks.run("one")
    started = pair.start_times()
    checks.change("one", every_s=1.0)
    alone = checks.run("one")
    assert "not restarted: two (rank 1) did not join within 2 s" in alone.record.healed
    assert pair.start_times() == started
    assert not (checks.state("one").read("health-remembered") or {})["heals"]
    assert [row["what"] for row in pair.history("one")] == ["verified"]

    checks.change("one", every_s=60.0)
    check = checks.start("one")
    checks.wait_for_barrier(check)
    pair.deployed()  # goes first, because the check only waits
    assert "not restarted: playbooks/cluster/deploy.yml by" in checks.finish("one", check).out
    assert {host: checks.run(host).record.state for host in pair.names} == {"one": "ok", "two": "ok"}


def test_hung_group_is_detected_by_one_check(pair: ClusterPair, checks: Checks) -> None:
    """Requests are running without tokens, while /health answers 200."""
    checks.change("one", limits={"token_s": 1.0, "frozen_s": 2.0})
    fault = pair.folder / "run/sandbox-fault"
    fault.parent.mkdir()
    fault.write_text("wedge")
    with client_request(pair):
        pair.docker("one", "cp", str(fault.parent), f"{pair.name}:/")
        result = checks.run("one")
    assert (result.record.seen, result.record.cure) == ("stalled", "restart"), result
    assert result.record.server.health_status == 200 and RANK_LOST in result.out


def test_heal_token_changes_with_each_install_and_is_removed_with_the_timer(pair: ClusterPair, checks: Checks) -> None:
    def read_tokens() -> set[str]:
        return {server_keys.load_heal_token(checks.state(host)).reveal() for host in pair.names}

    old = read_tokens()
    result = checks.install("--heal", "restart", "--json")
    new = read_tokens()
    assert len(old) == len(new) == 1 and old != new
    files = [path for host in pair.names for path in checks.state(host).path.rglob("*") if path.is_file()]
    texts = [path.read_text(errors="replace") for path in files if path.stem != server_keys.HEAL_TOKEN_RECORD]
    assert not any(token in text for token in old | new for text in [result.out, *texts])
    assert checks.install("--heal", "none").code == 0
    assert read_tokens() == {""}
    assert pair.run("health.uninstall", "--host", "two").code == 0


@contextlib.contextmanager
def client_request(pair: ClusterPair) -> Iterator[None]:
    """Run a client's request during the block, which begins when the engine has started it."""
    body = json.dumps({"model": "glm", "prompt": "1", "max_tokens": 4000}).encode()
    url = f"http://127.0.0.1:{pair.port}"

    def send_request() -> None:
        with contextlib.suppress(OSError):
            request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=60).close()

    def is_running() -> bool:
        page = urllib.request.urlopen(f"{url}/metrics", timeout=10).read()
        rows = [row for row in page.splitlines() if row.startswith(b"vllm:num_requests_running{")]
        return any(float(row.split()[-1]) for row in rows)

    thread = threading.Thread(target=send_request)
    thread.start()
    wait_until(is_running, "the client's request")
    try:
        yield
    finally:
        pair.docker("one", "kill", pair.name)
        thread.join(60)
