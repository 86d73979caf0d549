"""An experiment on a host, or on all members of a cluster: run its play, and collect its cells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sparkwright.app.bench.experiment_plans import Bench
from sparkwright.app.connect import Selection
from sparkwright.app.outcome import worst
from sparkwright.app.runs.presenters import Shown
from sparkwright.bench.order import Order
from sparkwright.bench.results_models import Results
from sparkwright.errors import Exit, Refused
from sparkwright.fleet.rollout import Roll
from sparkwright.project.rollout_policy import RolloutPolicy

Outcome = tuple[Results | None, int, Path]


def on_host(selection: Selection, order: Order, *, json: bool, wait: bool) -> Outcome:
    """Run an experiment on one host. Return the results (None if nothing was begun), the exit code and the folder."""
    if len(selection.hosts) != 1:
        raise Refused("an experiment runs on one host.", fix="--host NAME")
    return _done(Bench(selection, order, wait=wait), json=json)


def on_cluster(
    selection: Selection, order: Order, again: Callable[[], Selection], *, json: bool, wait: bool
) -> Outcome:
    """Run an experiment with arms on all members of a cluster. Return the same as `on_host`.

    An arm that fails ends the run, because all members restore their previous server. A sweep continues with the remaining arms
    in another run.

    Args:
        again: connects to the members once more.
    """
    failed: dict[str, str] = {}
    while True:
        bench = Bench(selection, order, wait=wait, failed=failed)
        outcome = _done(bench, json=json)
        lately = bench.failed_now()
        if not lately or not bench.goes_on():
            return outcome
        failed |= lately
        order, selection = replace(order, again=False), again()


def _done(bench: Bench, *, json: bool) -> Outcome:
    fleet = bench.chosen.fleet
    Shown(bench.chosen, json=json, diff=False)
    try:
        if bench.cluster is None or not fleet.reach():
            fleet.play("Bench", bench.chosen.hosts, bench.plan_for, Roll(RolloutPolicy(max_fail_percentage=100)))
    finally:
        fleet.close()
    codes = [int(member.recap["exit"]) for member in fleet.members if member.recap]
    return bench.ended(int(worst(codes)) if codes else int(Exit.FAILED))
