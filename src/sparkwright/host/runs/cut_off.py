"""The last steps of a run that was cut off (kill -9, a reboot, a power cut), from its journal."""

from __future__ import annotations

from pathlib import PurePath

from sparkwright import units
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.lock import Owner
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import decode
from sparkwright.trust.names import STEP

#: how to settle a run that was cut off, by its playbook
SETTLES = {
    "deploy": "`invoke deploy --host {host}` finishes it, `invoke rollback --host {host}` goes back",
    "restart": "`invoke restart --host {host}` repeats it",
    "switch": "`invoke switch --host {host}` finishes it",
    "rollback": "`invoke rollback --host {host}` finishes it",
}
OTHERWISE = "`invoke unlock --host {host}` clears it"


def interrupted(state: StateFolder) -> str:
    """Return a sentence about a run that was cut off, with the command that settles it; empty if there is none."""
    owner, alive = lock.inspect(state)
    if owner is None or alive or not unfinished(state, owner):
        return ""
    what = PurePath(owner.what).stem
    host = journal.plan_of(state.path / "runs" / owner.run).get("host") or "HOST"
    task = last_task(state, owner.run)
    at = units.moment(owner.since, units.MINUTE)
    reported = f"{what} of {at} by {owner.who} was interrupted{f', in: {task}' if task else ''}"
    return f"{reported}; {SETTLES.get(what, OTHERWISE).format(host=host)}"


def story(state: StateFolder, owner: Owner, server: str = "") -> str:
    """Return a sentence about a run that was cut off: what, who, when, and in which task.

    Args:
        server: the present run's server, if the host serves several.
    """
    reported = f"an earlier run was interrupted: {owner}"
    task = last_task(state, owner.run)
    plan = journal.plan_of(state.path / "runs" / owner.run)
    other = str(plan.get("server", ""))
    held = StateFolder(state.path, other if STEP.fullmatch(other) else "").read("previous") or {}
    aside = f"; it had stopped {held['name']}" if held.get("run") == owner.run and held.get("name") else ""
    story = f"{reported}, {f'in: {task}' if task else 'before its first task'}{aside}"
    if other != server:
        settles = SETTLES.get(PurePath(owner.what).stem, OTHERWISE).format(host=plan.get("host") or "HOST")
        return f"{story}; {settles}."
    return f"{story}. This run resumes from there."


def unfinished(state: StateFolder, owner: Owner) -> bool:
    """Return True if a run's journal has no recap."""
    return journal.recap_of(state.path / "runs" / owner.run) is None


def last_task(state: StateFolder, run_id: str) -> str:
    """Return the name of the last task that a run started; empty if its journal has none."""
    try:
        lines = (state.path / "runs" / run_id / "events.jsonl").read_bytes().splitlines()
    except OSError:
        return ""
    started = (row for row in map(decode, reversed(lines)) if row["event"] == "task_started")
    return str(next(started, {}).get("name", ""))
