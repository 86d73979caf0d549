"""The time that sparkwright adds to a cluster's start: two simulated Sparks, whose ranks meet over loopback.

    make bench-cluster_start

The lower bound is the ranks' own start in the same run: `docker start` of both at once, with free memory, until the head
generates a token, which it does when the slower rank has joined. `restart`, and `deploy` of a changed flag, are compared with
it: the time from the first rank's start until that token, and the whole time without an answer. The simulated ranks start
immediately, so the difference is sparkwright's: barriers, and the proof that containers, processes and memory are gone. The runs
alternate; medians of RUNS.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

from tests.e2e.conftest import CommandResult
from tests.e2e.pair.project import HOSTS, NAME, PairProject, pair_project

from benchmarks.restart import LINGERS_S, Client

RUNS = 5
STARTS = ("Start the worker", "Start the head")
#: seconds that the start took, and seconds without an answer
Times = tuple[float, float]


def main() -> None:
    """Print the lower bound, and a line for each command."""
    os.environ["SPARKWRIGHT_SANDBOX_SPEED"] = "instant"
    with pair_project() as project:
        project.deployed()
        actions = {"restart": restart, "deploy of a change": deploy_change}
        floors, times = list[Times](), {name: list[Times]() for name in actions}
        for _ in range(RUNS):
            floors.append(measure_ranks(project))
            for name, action in actions.items():
                times[name].append(measure_command(project, action))
    floor_s, floor_outage_s = medians(floors)
    print(f"{'':<20} {'start':>8} {'adds':>8} {'worst':>8} {'no answer':>10} {'adds':>8}")
    print(f"{'the ranks alone':<20} {floor_s:>7.2f}s {'':>8} {'':>8} {floor_outage_s:>9.2f}s")
    for name, rows in times.items():
        start_s, outage_s = medians(rows)
        worst_s = max(start for start, _ in rows) - floor_s
        print(
            f"{name:<20} {start_s:>7.2f}s {start_s - floor_s:>7.2f}s {worst_s:>7.2f}s "
            f"{outage_s:>9.2f}s {outage_s - floor_outage_s:>7.2f}s"
        )


def measure_ranks(project: PairProject) -> Times:
    """Return the seconds from `docker start` of both ranks to a token, and those without an answer, minus the pause between."""
    with Client(project.port) as client:
        for host in HOSTS:
            project.engine_of(host).api.stop(NAME, timeout=60)
        stopped_s = time.time()
        time.sleep(LINGERS_S)
        started_s = time.time()
        for host in reversed(HOSTS):
            project.engine_of(host).api.start(NAME)
    return client.answered_s - started_s, client.outage_s - (started_s - stopped_s)


def measure_command(project: PairProject, action: Callable[[PairProject], CommandResult]) -> Times:
    """Return the seconds from the first rank's start to a token, and those without an answer. A failure ends the benchmark."""
    with Client(project.port) as client:
        result = action(project)
    if not result.proved:
        sys.exit(result.out[-1500:] + result.err[-1500:])
    events = [json.loads(line) for line in result.out.splitlines()]
    started_s = min(row["time"] for row in events if row["event"] == "task_started" and row["name"] in STARTS)
    return client.answered_s - started_s, client.outage_s


def restart(project: PairProject) -> CommandResult:
    return project.run("restart", "--host", "sandbox-pair", "--json")


def deploy_change(project: PairProject) -> CommandResult:
    project.change()
    return project.deploy()


def medians(rows: list[Times]) -> Times:
    starts, outages = zip(*rows, strict=True)
    return statistics.median(starts), statistics.median(outages)


if __name__ == "__main__":
    main()
