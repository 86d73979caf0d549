"""A recap: the outcome on one host, in one event. The last event of a run, and the whole answer of a host that refuses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparkwright.errors import Exit, Failed, SparkwrightError, Unreachable
from sparkwright.protocol.events import Event, event

#: the counts of a recap, in the order of display; RARE only if they are not 0
COUNTS = ("ok", "changed", "failed", "skipped", "unreachable")
RARE = ("rescued", "ignored")


def of_error(host: str, error: SparkwrightError, seconds: float = 0.0, *, msg: str = "") -> Event:
    """Return the recap of a host that could not be reached, or refused. msg: replaces the error's own sentence."""
    ended = "unreachable" if isinstance(error, Unreachable) or error.exit is Exit.UNREACHABLE else "failed"
    counts = {name: int(name == ended) for name in COUNTS}
    return event(
        "recap", host=host, **counts, exit=int(_failure(error.exit)), seconds=round(seconds, 3), msg=msg or str(error)
    )


def added(before: Event | None, now: Event) -> Event:
    """Return the recap over several plays of one host."""
    if before is None:
        return now
    return {**now, **{key: before.get(key, 0) + now.get(key, 0) for key in (*COUNTS, *RARE, "seconds")}}


def shown(recap: Mapping[str, Any]) -> str:
    """Return the counts as text: "ok=3 changed=1 failed=0 skipped=0 unreachable=0"."""
    return " ".join(f"{name}={recap[name]}" for name in (*COUNTS, *(item for item in RARE if recap.get(item))))


def of(events: Iterable[Event]) -> Event | None:
    """Return the recap among a host's events; None if there is none."""
    return next((event for event in events if event["event"] == "recap"), None)


def error(recap: Event | None, otherwise: str = "the host gave no answer.") -> SparkwrightError:
    """Return the error of a recap, to raise: with the host's message and exit code.

    Args:
        otherwise: the message if there is no recap, or one without a message.
    """
    found = Failed((recap or {}).get("msg") or otherwise)
    found.exit = _failure(recap["exit"] if recap else Exit.FAILED)
    return found


def _failure(code: int) -> Exit:
    """Return the exit code of a failure: a host that says 0 without an answer has failed nevertheless."""
    return Exit.FAILED if code in (Exit.OK, Exit.CHANGES) else Exit(code)
