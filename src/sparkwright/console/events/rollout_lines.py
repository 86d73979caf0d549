"""The messages of a rolling run between its batches and at its end."""

from __future__ import annotations

from collections.abc import Collection

from sparkwright.console import words
from sparkwright.protocol.events import Event
from sparkwright.visible import count

#: the rows at the end: title, key of the event, style
ROWS = (
    ("done", "done", "ok"),
    ("already done", "earlier", "ok"),
    ("failed", "failed", "failed"),
    ("unreachable", "unreachable", "failed"),
    ("not started", "not_begun", "changed"),
)


def looking(event: Event) -> str:
    """Return the message that is shown while all hosts are checked."""
    return f"checking {how_many(event['hosts'])} before changing any"


def how_many(names: Collection[str]) -> str:
    """Return the number of hosts as text, or of servers if a host has several."""
    return count(len(names), "server" if any("/" in name for name in names) else "host")


def batch(event: Event) -> str:
    """Return the title of a batch."""
    kind = "canary" if event["canary"] else f"batch {event['n']}"
    left = f", {event['left']} left" if event["left"] else ""
    return f"{kind}: {words.names(event['hosts'])}{left}"


def lines(event: Event) -> list[tuple[str, str]]:
    """Return style and text of each line: finished and unfinished hosts, the reason of a stop, and how to resume."""
    shown = [("failed", f"{event['playbook']} stopped: {event['why']}.")] if event["why"] else []
    shown += [(style, f"  {name:<12} {words.names(event[key], 40)}") for name, key, style in ROWS if event[key]]
    if event["resume"]:
        shown.append(("fix", f"  → `{event['resume']}` continues with the rest."))
    return shown
