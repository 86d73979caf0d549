"""What a cluster's start costs beyond the engine's own: two simulated Sparks, whose ranks meet over this machine's loopback.

    make bench-cluster_start

The floor is the ranks' own start in the same run: `docker start` of both at once, into memory that is free, until the head
gives a token, which it does when the slower one has joined. Beside it stand `invoke restart` and `invoke deploy` of a changed
flag: from the first rank's start until that token, and the whole time in which no client was answered. The ranks start at once
here, so that what is left is the tool's: meeting at barriers, proving what is gone. In turns, medians of RUNS.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

from tests.e2e.conftest import CommandResult
from tests.e2e.pair.project import HOSTS, NAME, PairProject, pair_project

from benchmarks.restart import LINGERS_S, Client

RUNS = 5
STARTS = ("Start the worker", "Start the head")


def main() -> None:
    """Print the lower bound, and a line for each way to start."""
    os.environ["SPARKWRIGHT_SANDBOX_SPEED"] = "instant"
    with pair_project() as desk:
        desk.deployed()
        ways = {"restart": lambda: restarted(desk), "deploy of a change": lambda: changed(desk)}
        floors, found = list[tuple[float, float]](), {name: list[tuple[float, float]]() for name in ways}
        for _ in range(RUNS):
            floors.append(alone(desk))
            for name, act in ways.items():
                found[name].append(started(desk, act))
    start_s, outage_s = medians(floors)
    print(f"{'':<20} {'start':>8} {'adds':>8} {'worst':>8} {'no answer':>10} {'adds':>8}")
    print(f"{'the ranks alone':<20} {start_s:>7.2f}s {'':>8} {'':>8} {outage_s:>9.2f}s")
    for name, rows in found.items():
        own_s, own_outage_s = medians(rows)
        worst_s = max(start for start, _ in rows) - start_s
        print(
            f"{name:<20} {own_s:>7.2f}s {own_s - start_s:>7.2f}s {worst_s:>7.2f}s "
            f"{own_outage_s:>9.2f}s {own_outage_s - outage_s:>7.2f}s"
        )


def alone(desk: PairProject) -> tuple[float, float]:
    """Return the seconds from `docker start` of both ranks to a token, and those without an answer, less the stopped time."""
    with Client(desk.port) as client:
        for host in HOSTS:
            desk.engine_of(host).api.stop(NAME, timeout=60)
        stopped_s = time.time()
        time.sleep(LINGERS_S)
        again_s = time.time()
        for host in reversed(HOSTS):
            desk.engine_of(host).api.start(NAME)
    return client.answered_s - again_s, client.outage_s - (again_s - stopped_s)


def started(desk: PairProject, act: Callable[[], CommandResult]) -> tuple[float, float]:
    """Return the same for a command of the tool: from the first rank's start to a token, and without an answer."""
    with Client(desk.port) as client:
        rows = [json.loads(line) for line in act().out.splitlines()]
    begun_s = min(one["time"] for one in rows if one["event"] == "task_started" and one["name"] in STARTS)
    return client.answered_s - begun_s, client.outage_s


def restarted(desk: PairProject) -> CommandResult:
    """Run `invoke restart`."""
    return proved(desk.run("restart", "--host", "sandbox-pair", "--json"))


def changed(desk: PairProject) -> CommandResult:
    """Run `invoke deploy` with another flag."""
    desk.change()
    return proved(desk.deploy())


def proved(answer: CommandResult) -> CommandResult:
    """Return a verified answer; any other ends the benchmark."""
    if not answer.proved:
        sys.exit(answer.out[-1500:] + answer.err[-1500:])
    return answer


def medians(rows: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the medians of both columns."""
    first, second = (statistics.median(column) for column in zip(*rows, strict=True))
    return first, second


if __name__ == "__main__":
    main()
