"""A cluster of both pretend Sparks: over a real sshd, on two real Docker Engines, its ranks and its runs over a real network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.conftest import Lab, Said, hasten

pytestmark = pytest.mark.bed

HOSTS = ("spark1", "spark2")
ASK = """curl -s -m 10 -H 'Content-Type: application/json' 127.0.0.1:8000/v1/completions \
  -d '{"model": "qwen3.5-35b", "prompt": "1", "max_tokens": 1}'"""
BARE = "docker rm -f qwen35 qwen35-previous; sudo systemctl restart ollama"


@pytest.fixture
def pair(bed: Path, tmp_path: Path) -> Iterator[Lab]:
    """A project whose cluster is the two hosts, of which neither serves anything."""
    shutil.copytree(bed / "pair", tmp_path / "pair")
    (tmp_path / "pair/spark.lock").unlink(missing_ok=True)
    one = hasten(Lab(tmp_path / "pair", bed / "bin"), "pair")
    for host in HOSTS:
        one.on(host, BARE)
    yield one
    for host in HOSTS:
        one.on(host, BARE)


def deployed(pair: Lab) -> Said:
    said = pair.run("deploy", "--host", "pair", "--json")
    assert said.code in (0, 4), said.out[-4000:] + said.err
    return said


def running(pair: Lab) -> dict[str, str]:
    """The Id of each host's running container, by host."""
    found = {host: pair.on(host, "docker ps --no-trunc -q") for host in HOSTS}
    return {host: one for host, one in found.items() if one}


def generates(pair: Lab) -> bool:
    return '"choices"' in pair.on("spark1", ASK)


def test_ranks_of_two_hosts_are_proved_healed_and_restored_as_one(pair: Lab) -> None:
    deployed(pair)
    first = running(pair)
    assert first.keys() == set(HOSTS) and generates(pair)
    again = deployed(pair)
    assert (again.code, again.recap["changed"]) == (0, 0)
    assert running(pair) == first

    pair.on("spark2", "docker kill qwen35")
    assert "changed" in deployed(pair).out
    healed = running(pair)
    assert healed.keys() == first.keys() and not set(healed.values()) & set(first.values())
    assert generates(pair)

    pair.recipe("SPEED: instant}", "SPEED: instant, SANDBOX_FAULT: crash-loop}", "pair")
    said = pair.run("deploy", "--host", "pair", "--json")
    assert said.code == 1, said.out[-3000:]
    assert running(pair) == healed and generates(pair)
