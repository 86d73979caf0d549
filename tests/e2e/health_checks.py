"""Scheduled health checks of simulated Sparks, as a host's timer makes them."""

import time
from pathlib import Path

from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.runner.health_check import build_check
from sparkwright.sandbox import control


def run_check(
    sandbox: Path,
    settings: Settings,
    *,
    later_s: float = 0.0,
    state: StateFolder | None = None,
    notes: list[str] | None = None,
) -> Record:
    """Run a check.

    Args:
        later_s: how far its clock is ahead.
        state: the server's folder, if the host has several servers.
        notes: receives the texts of its events.
    """
    machine = Machine.from_environment(control.up(sandbox))
    texts = [] if notes is None else notes
    context = RunContext(
        machine, state or StateFolder.in_home(machine.home), "run-1", lambda event: texts.append(event.get("text", ""))
    )
    return build_check(context, settings, scheduled=True, now=lambda: time.time() + later_s).run()
