"""What can happen to one member of a cluster at moments of a swap: afterwards the cluster serves verified, or what served before
does, or nothing does and the next deploy starts it. Never is half a cluster started, and never do two servers run on one host.

Each row is the task before which the run of one host stands when it happens; each column is what happens to that host:

    fails    its step fails
    killed   its runner is killed with -9
    cut      the laptop is gone: lid, network, kill
    docker   its Docker Engine is restarted: its rank exits, and has no policy to start again
    reboot   all its processes end at once
    network  nothing passes between the two hosts any more (iptables)

and each cell is who serves when the runs have ended, without another command, when it happened to the head / to the worker: the old
ranks, the new ones, or none: the other host restores nothing, for half a cluster is not started. half: a rank that no run could stop,
because its own was killed or the other host rebooted; it answers nobody. `?`: not filled in yet, anything but a server that answers
with errors. In every case the next deploy has both serve. `make test-faults` runs all of it, `make test-all` the cells in brackets.
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
                    message = bench.ended()
                    laptop.wait(timeout=60)
                finally:
                    bench.reconnect()
        outcome = bench.outcome(old_server)
        record_property("outcome", outcome)  # `--junitxml FILE` shows it
        result = {key: events[-1].get("msg", "") for key, events in message.items()}
        second_run = bench.project.deploy()
    assert outcome == expected if expected != "?" else not outcome.startswith("broken"), (outcome, result)
    assert second_run.proved, second_run.out[-3000:]
    assert bench.outcome(old_server) in ("old", "new")
    assert watch.most == 1, "two servers ran at once on one host"
    assert list_containers(bench) == EXPECTED_CONTAINERS, "the failed and the older ones are removed"
