"""A cluster of both pretend Sparks: over a real sshd, on two real Docker Engines, its ranks and its runs over a real network."""

from __future__ import annotations

import pytest

from tests.bed.cluster import HOSTS, Cluster

pytestmark = pytest.mark.bed


def test_ranks_of_two_hosts_are_proved_healed_and_restored_as_one(pair: Cluster) -> None:
    pair.deployed()
    first = pair.running()
    assert first.keys() == set(HOSTS) and pair.generates()
    again = pair.deployed()
    assert (again.code, again.recap["changed"]) == (0, 0)
    assert pair.running() == first

    pair.on("spark2", "docker kill qwen35")
    assert "changed" in pair.deployed().out
    healed = pair.running()
    assert healed.keys() == first.keys() and not set(healed.values()) & set(first.values())
    assert pair.generates()

    pair.recipe("SPEED: instant}", "SPEED: instant, SANDBOX_FAULT: crash-loop}", "pair")
    said = pair.deploy()
    assert said.code == 1, said.out[-3000:]
    assert pair.running() == healed and pair.generates()
