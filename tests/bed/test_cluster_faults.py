"""Cells of the fault matrix of a cluster (tests/faults/pair) in which only the GPU is simulated: a real sshd, two real Docker
Engines, a real network, power cuts. The run of a member waits at a gate while its host has a fault.

Afterwards the new ranks serve, or the old ones, or none, and both serve after the next deploy. Two servers never run on one host.
"""

import pytest

from tests.bed.cluster import HOSTS, ClusterProject

STOP, START, PROVE = "Check free memory", "Wait until the rank has joined", "Wait until the cluster is verified"
#: step before the fault, fault, host, and what serves when the runs have ended
CELLS = [
    (START, "cut", "spark2", "new"),
    (START, "docker", "spark2", "old"),
    (STOP, "power", "spark2", "none"),
    (START, "docker", "spark1", "old"),
    (STOP, "power", "spark1", "none"),
    (START, "killed", "spark1", "half"),
    (STOP, "killed", "spark2", "none"),
    (START, "cut", "spark1", "new"),
    (PROVE, "cut", "spark1", "new"),
    (STOP, "fails", "spark2", "old"),
]
QUICK = 4


@pytest.mark.parametrize(
    ("step", "fault", "host", "expected"),
    [pytest.param(*cell, marks=() if n < QUICK else pytest.mark.whole) for n, cell in enumerate(CELLS)],
    ids=[f"{fault} {host}: {step}" for step, fault, host, _ in CELLS],
)
def test_cluster_after_a_fault_of_a_member(
    pair: ClusterProject, step: str, fault: str, host: str, expected: str
) -> None:
    pair.deployed()
    old_server = pair.running()
    pair.change()
    playbooks = pair.gate(step, host)
    laptop = pair.start("deploy", "--host", "pair", "--json")
    try:
        pair.reached(host, laptop)
        getattr(pair, fault)(host)
    finally:
        for path, text in playbooks.items():
            path.write_text(text)
        pair.on(host, "touch /tmp/open; rm -f /tmp/hold")
    out, _ = laptop.communicate(timeout=200)
    pair.ended()
    assert pair.outcome(old_server) == expected, out[-3000:]
    pair.deployed()
    assert pair.outcome(old_server) in ("old", "new")
    for name in HOSTS:
        assert pair.on(name, "docker ps -a --format '{{.Names}}'") == "qwen35", "failed and previous ranks are removed"
