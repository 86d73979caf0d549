"""The timers of a cluster's members under a real systemd: a rank that is gone is noticed, and all are restarted, with no laptop."""

import json
from collections.abc import Iterator

import pytest

from tests.bed.cluster import HOSTS, ClusterProject

pytestmark = pytest.mark.bed

AS_USER = "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user "


@pytest.fixture
def watched(pair: ClusterProject) -> Iterator[ClusterProject]:
    """A cluster that serves, whose hosts check it every 30 s."""
    pair.deployed()
    install = ["health.install", "--host", "pair", "--every", "30s", "--heal", "restart", "--smoke-every", "0"]
    result = pair.run(*install)
    assert result.code == 0, result.out + result.err
    for host in HOSTS:
        assert pair.on(host, AS_USER + "is-active sparkwright-health.timer") == "active"
    yield pair
    assert pair.run("health.uninstall", "--host", "pair").code == 0


def wait_for_restart(pair: ClusterProject) -> dict[str, str]:
    """Wait until both hosts' last check is good, and return the reason of each host's newest restart."""

    def is_healthy() -> bool:
        return all(pair.record(host).get("state") == "ok" for host in HOSTS) and len(pair.running()) == len(HOSTS)

    pair.until(is_healthy, str({host: pair.record(host) for host in HOSTS}), timeout_s=400)
    reasons = {}
    for host in HOSTS:
        newest = json.loads(pair.run("history", "--host", host, "--json").out.splitlines()[0])
        assert (newest["what"], newest["who"]) == ("healed", "the health check")
        reasons[host] = newest["why"]
    return reasons


def test_timers_restart_all_ranks_after_a_rank_was_killed(watched: ClusterProject) -> None:
    before = watched.running()
    watched.on("spark2", "docker kill qwen35")
    watched.until(lambda: watched.record("spark2").get("state") == "down", "the worker's check says nothing")
    watched.until(lambda: watched.record("spark1").get("state") == "down", "the head's check says nothing")
    reasons = wait_for_restart(watched)
    assert all("rank 1 of pair (qwen35) exited (exit code 137)" in item for item in reasons.values()), reasons
    assert watched.running() == before and watched.generates(), "the same containers serve again"


def test_cluster_serves_again_after_a_power_cut(watched: ClusterProject) -> None:
    before = watched.running()
    watched.power("spark2")
    watched.until(lambda: watched.record("spark1").get("state") == "down", "the head's check says nothing")
    reasons = wait_for_restart(watched)
    assert all("spark2: rank 1 of pair (qwen35) exited" in item for item in reasons.values()), reasons
    assert watched.running() == before and watched.generates()
