"""Faults of a cluster's member at steps of a swap: afterwards the new ranks serve verified, or the old ranks serve, or none does
and the next deploy starts both. A cluster is never started partially, and two servers never run on one host.

A row is the task before which the run of a host waits during the fault; a column is the fault of that host:

    fails    its step fails
    killed   its runner is killed with -9
    cut      the laptop is disconnected: lid, network, kill
    docker   its Docker Engine is restarted: its rank exits, and has no restart policy
    reboot   all its processes end at once
    network  the connection between the hosts is cut (iptables)

A cell has what serves when the runs have ended, after a fault of the head / of the worker: the old ranks, the new ranks, or none,
because a rank is not restored alone. half: a rank that no run could stop, because its own run was killed or the other host rebooted;
it answers no requests. `?`: not filled in yet; anything but a server that answers with errors. After the next deploy, both serve.
`make test-faults` runs all cells, `make test-all` those in brackets.
"""

import os
import shutil
from collections.abc import Callable, Iterator

import pytest

from tests.e2e.pair.project import HOSTS, pair_project
from tests.faults.pair.bench import EXPECTED_CONTAINERS, PairBench, ServerWatcher, list_containers

COLUMNS = ("fails", "killed", "cut", "docker", "reboot", "network")
TABLE = """
Unload Ollama's models                  |  old / old  |  old / ?    | new / new |  new / new  | half / ?    | ? / ?
Wait until the head has stopped         |  old / old  |  ? / ?      | new / new |  ? / ?      | ? / ?       | ? / ?
Check free memory                       | (old)/ old  | none / none | new / new |  new / new  | none / none | none / none
Wait until no old rank is left anywhere |  old / old  |  ? / ?      | new / new |  ? / ?      | ? / ?       | ? / ?
Wait until the workers have started     |  old / old  |  ? / ?      | new / new |  ? / ?      | ? / ?       | ? / ?
Wait until the rank has joined          |  old / old  | (half)/ half| new / new |  old /(old) | none / ?    | ? / ?
Check that it uses the GPU              |  old / old  |  ? / ?      | new / new |  ? / ?      | ? / ?       | ? / ?
Wait until the cluster is verified      |  old / old  |  ? / ?      | ? / ?     |  ? / ?      | ? / ?       | ? / ?
Keep it as the last verified state, remove previous container | ? / ? | ? / ? | ? / ?     | ? / ? | ? / ? | new / ?
"""
CELLS = [
    (step.strip(), column, host, value.strip(" ()"), "(" in value)
    for row in TABLE.strip().splitlines()
    for step, *cells in [row.split("|")]
    for column, cell in zip(COLUMNS, cells, strict=True)
    for host, value in zip(HOSTS, cell.split("/"), strict=True)
]


@pytest.fixture(scope="module")
def bench() -> Iterator[PairBench]:
    with pytest.MonkeyPatch.context() as patch, pair_project() as project:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        project.deployed()
        yield PairBench(project)


@pytest.mark.parametrize(
    ("step", "fault", "host", "expected", "quick"),
    [pytest.param(*cell, marks=() if cell[4] else pytest.mark.whole) for cell in CELLS],
    ids=[f"{fault} {host}: {step}" for step, fault, host, _, _ in CELLS],
)
def test_cluster_after_a_fault_of_a_member(
    bench: PairBench,
    record_property: Callable[[str, object], None],
    step: str,
    fault: str,
    host: str,
    expected: str,
    quick: bool,
) -> None:
    if fault == "network" and (os.geteuid() or not shutil.which("iptables")):
        pytest.skip("cutting a network needs root and iptables")
    old_server = bench.whole()
    bench.project.change()
    with ServerWatcher(bench) as watch:
        with bench.gate(step, host):
            laptop = bench.start()
            try:
                bench.reached(host, laptop)
                getattr(bench, fault)(host, laptop)
            finally:
                bench.open(host)
                try:
                    events_by_host = bench.ended()
                    laptop.wait(timeout=60)
                finally:
                    bench.reconnect()
        outcome = bench.outcome(old_server)
        record_property("outcome", outcome)  # `--junitxml FILE` shows it
        result = {name: events[-1].get("msg", "") for name, events in events_by_host.items()}
        second_run = bench.project.deploy()
    assert outcome == expected if expected != "?" else not outcome.startswith("broken"), (outcome, result)
    assert second_run.proved, second_run.out[-3000:]
    assert bench.outcome(old_server) in ("old", "new")
    assert watch.most == 1, "two servers ran at once on one host"
    assert list_containers(bench) == EXPECTED_CONTAINERS, "failed and previous ranks are removed"
