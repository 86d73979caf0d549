"""Cells of the fault matrix of a cluster (tests/faults/pair) where nothing is pretended but the GPU: a real sshd, two real Docker
Engines, a real network, hosts that lose their power. One member's run stands at a gate while something happens to its host.

Afterwards the new ranks serve, or the old ones, or none, and the next deploy has both serve; never do two servers run on one host.
"""

import os

import pytest

from tests.bed.cluster import HOSTS, ClusterProject

pytestmark = pytest.mark.bed

STOP, START, PROVE = "Check free memory", "Wait until the rank has joined", "Wait until the cluster is verified"
#: step before which it happens, what happens, to whom, who serves when the runs have ended
QUICK = [
    (START, "cut", "spark2", "new"),
    (START, "docker", "spark2", "old"),
    (STOP, "power", "spark2", "none"),
    (START, "docker", "spark1", "old"),
]
REMAINING = [
    (STOP, "power", "spark1", "none"),
    (START, "killed", "spark1", "half"),
    (STOP, "killed", "spark2", "none"),
    (START, "cut", "spark1", "new"),
    (PROVE, "cut", "spark1", "new"),
    (STOP, "fails", "spark2", "old"),
]
CELLS = [*QUICK, *REMAINING]
EVERY_FAULT = os.environ.get("SPARKWRIGHT_FAULTS") == "all"


@pytest.mark.parametrize(
    ("step", "fault", "host", "expected"),
    CELLS if EVERY_FAULT else QUICK,
    ids=[f"{fault} {host}: {step}" for step, fault, host, _ in (CELLS if EVERY_FAULT else QUICK)],
)
def test_cluster_after_a_fault_of_a_member(
    pair: ClusterProject, step: str, fault: str, host: str, expected: str
) -> None:
    pair.deployed()
    old_server = pair.running()
    pair.change()
    books = pair.gate(step, host)
    laptop = pair.start("deploy", "--host", "pair", "--json")
    try:
        pair.reached(host, laptop)
        getattr(pair, fault)(host)
    finally:
        for path, text in books.items():
            path.write_text(text)
        pair.on(host, "touch /tmp/open; rm -f /tmp/hold")
    out, _ = laptop.communicate(timeout=200)
    pair.ended()
    assert pair.outcome(old_server) == expected, out[-3000:]
    pair.deployed()
    assert pair.outcome(old_server) in ("old", "new")
    for item in HOSTS:
        assert pair.on(item, "docker ps -a --format '{{.Names}}'") == "qwen35", (
            "the failed and the older ones are removed"
        )
