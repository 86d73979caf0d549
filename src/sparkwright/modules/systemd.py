"""Access to a unit's journal: the command that shows it, and its last lines."""

from __future__ import annotations

from sparkwright.host.module import Context


def journal(unit: str, scope: str) -> str:
    """Return the command that shows a unit's log. scope: user or system."""
    return f"On the host: `journalctl {'--user ' if scope == 'user' else ''}-u {unit} -n 20`."


def last_words(context: Context, unit: str, scope: str) -> str:
    """Return the last lines of a unit's journal, joined."""
    who = ["--user"] if scope == "user" else []
    answer = context.machine.run(["journalctl", *who, "-u", unit, "-n", "3", "-o", "cat", "--no-pager"])
    return " ".join(answer.out.split())[-300:] or "no output"
