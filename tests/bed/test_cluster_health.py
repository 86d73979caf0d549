"""The timers of a cluster's members under a real systemd restart all ranks after a rank was lost, without a laptop."""

from collections.abc import Iterator

import pytest

from tests.bed.cluster import HOSTS, ClusterProject
from tests.bed.conftest import USER_SYSTEMCTL
from tests.waiting import wait_until


@pytest.fixture
def watched(pair: ClusterProject) -> Iterator[ClusterProject]:
    """A serving cluster with a check on each host every 30 s."""
    pair.deployed()
    install = ["health.install", "--host", "pair", "--every", "30s", "--heal", "restart", "--smoke-every", "0"]
    result = pair.run(*install)
    assert result.code == 0, result.output
    for host in HOSTS:
        assert pair.on(host, USER_SYSTEMCTL + "is-active sparkwright-health.timer") == "active"
    yield pair
    assert pair.run("health.uninstall", "--host", "pair").code == 0


def wait_for_restart(pair: ClusterProject) -> dict[str, str]:
    """Wait until both hosts' last check is good, and return the reason of each host's newest restart."""

    def is_healthy() -> bool:
        states = [pair.health_record(host).get("state") for host in HOSTS]
        return states == ["ok", "ok"] and len(pair.running()) == len(HOSTS)

    wait_until(is_healthy, "two healthy hosts", timeout_s=400)
    reasons = {}
    for host in HOSTS:
        newest = pair.run("history", "--host", host, "--json").events[0]
        assert (newest["what"], newest["who"]) == ("healed", "the health check")
        reasons[host] = newest["why"]
    return reasons


def test_timers_restart_all_ranks_after_a_rank_was_killed(watched: ClusterProject) -> None:
    before = watched.running()
    watched.on("spark2", "docker kill qwen35")
    for host in reversed(HOSTS):
        watched.wait_for_state(host, "down")
    reasons = wait_for_restart(watched)
    assert all("rank 1 of pair (qwen35) exited (exit code 137)" in item for item in reasons.values()), reasons
    assert watched.running() == before and watched.generates(), "the same containers are restarted"


def test_cluster_serves_again_after_a_power_cut(watched: ClusterProject) -> None:
    before = watched.running()
    watched.power("spark2")
    watched.wait_for_state("spark1", "down")
    reasons = wait_for_restart(watched)
    assert all("spark2: rank 1 of pair (qwen35) exited" in item for item in reasons.values()), reasons
    assert watched.running() == before and watched.generates()
