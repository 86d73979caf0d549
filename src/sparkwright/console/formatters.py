"""Format progress, names and values as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from sparkwright import units
from sparkwright.protocol.events import Event

SANDBOX_DESCRIPTION = "a simulated Spark without a GPU or a real model"


def format_progress(done: float, total: float, unit: str) -> str:
    """Return the progress as text, for example "1.2 GB of 9.0 GB", "64 of 128 tokens" or "12s of 15m00s"."""
    format_number = {"bytes": units.format_size, "s": units.format_duration}.get(unit, "{:g}".format)
    suffix = f" {unit}" if unit not in ("bytes", "s", "") else ""
    return f"{format_number(done)} of {format_number(total)}{suffix}" if total else f"{format_number(done)}{suffix}"


def format_run(event: Event) -> str:
    """Return the text of a `run` event, a row of `runs`; the plan of a damaged run has no play and no user."""
    mode = " (check)" if event.get("check") else ""
    play = event.get("play") or "its plan is not readable"
    return f"{event['run']}  {event['state']:<8} {play}{mode}  {event.get('who') or ''}".rstrip()


def join_names(names: Sequence[str], max_names: int = 12) -> str:
    """Return names as "spark1, spark2 and spark3"; names beyond `max_names` are replaced with their number."""
    parts = [*names[:max_names], *([f"{len(names) - max_names} more"] if len(names) > max_names else [])]
    return " and ".join([*([", ".join(parts[:-1])] if parts[1:] else []), *parts[-1:]])


def sandbox_notice(host: str) -> str:
    return f"{host} is the sandbox: {SANDBOX_DESCRIPTION}."


def same_reason(host: str) -> str:
    return f"same reason as {host}"


def format_value(value: Any) -> str:
    """Return any value as one line, with a digest shortened to its first twelve characters."""
    text = "absent" if value is None else value if isinstance(value, str) else str(value)
    return re.sub(r"(sha256:[0-9a-f]{12})[0-9a-f]{52}", r"\1…", text.replace("\n", "⏎"))


def truncate_value(value: Any, max_chars: int = 88) -> str:
    """Return a value as one line of at most this many characters."""
    text = format_value(value)
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
