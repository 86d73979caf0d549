"""What a run that was cut off had been doing, told from its journal: kill -9, a reboot, a power cut."""

from __future__ import annotations

from sparkwright.host.state import StateFolder
from sparkwright.plan.events import decode
from sparkwright.runner import journal
from sparkwright.runner.lock import Owner


def story(state: StateFolder, owner: Owner) -> str:
    """One sentence: who, what, when, and in which task it ended."""
    told = f"an earlier run was cut off: {owner}"
    task = last_task(state, owner.run)
    held = state.read("previous") or {}
    aside = f"; {held['name']} had been stopped for it" if held.get("run") == owner.run and held.get("name") else ""
    return f"{told}, {f'in: {task}' if task else 'before its first task'}{aside}. This run takes up from what is there."


def unfinished(state: StateFolder, owner: Owner) -> bool:
    """Whether a run has no end in its journal."""
    return journal.recap_of(state.path / "runs" / owner.run) is None


def last_task(state: StateFolder, run_id: str) -> str:
    """The name of the task that a run did not end; empty when its journal tells of none."""
    try:
        lines = (state.path / "runs" / run_id / "events.jsonl").read_bytes().splitlines()
    except OSError:
        return ""
    name = ""
    for line in lines:
        one = decode(line)
        if one["event"] == "task_started":
            name = str(one.get("name", ""))
    return name
