"""The health checks of a cluster's hosts: each of its own rank, and a restart of all without a laptop."""

from __future__ import annotations

import pytest

from tests.cluster.checks import Checks
from tests.cluster.pair import Pair


@pytest.fixture
def checks(pair: Pair) -> Checks:
    """Of a cluster that serves."""
    one = Checks(pair)
    pair.deployed()
    return one


def test_each_member_checks_its_own_rank_and_a_dead_one_is_healed_as_one(pair: Pair, checks: Checks) -> None:
    answer = checks.install()
    assert answer.code == 0, answer.out + answer.err
    assert {host: row["state"] for host, row in checks.status().items()} == {"one": "ok", "two": "ok"}
    worker = checks.run("two").record
    assert worker.rank.group_rank == 1 and worker.server.health_status is None
    before = pair.running()

    pair.docker("two", "kill", pair.name)
    assert "rank 1 of pair" in checks.run("two").out
    first = checks.run("one")
    assert first.record.seen == "down" and "a rank of its cluster is gone or hung" in first.out
    found = checks.healed()
    print(found)
    assert "restarted" in found["one"].record.healed and "restarted" in found["two"].record.healed
    assert pair.running() == before
    assert pair.generates()
    assert {host: row["state"] for host, row in checks.status().items()} == {"one": "ok", "two": "ok"}
