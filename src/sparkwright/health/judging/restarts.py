"""Restarts by Docker of a server that exited by itself: starts that no user requested. Pure."""

from __future__ import annotations

from sparkwright import units
from sparkwright.health.record import Container, State

#: this many restarts without an answer are a loop, even at the first check
LOOP = 2
#: after a start of this length Docker resets its delay between restarts, seconds
SETTLED_S = 10.0


def loops(box: Container, now_s: float) -> bool:
    """Return True if a server that does not answer is in a crash loop, as far as one check can see."""
    age_s = now_s - box.started_s if box.status == "running" and box.started_s is not None else 0.0
    return (box.restarts or 0) >= LOOP and age_s <= SETTLED_S


def state(box: Container, now_s: float) -> State:
    """Return the state of a server that Docker restarted and that does not answer (yet)."""
    return "crash-looping" if loops(box, now_s) else "down"


def exited(box: Container, now_s: float) -> str:
    """Return a sentence like "qwen35 exited with code 1 4 s ago". Docker forgets the code once it has restarted the container."""
    code = f" with code {box.exit_code}" if box.exit_code is not None else ""
    when = f" {units.about(now_s - box.finished_s)} ago" if box.finished_s is not None else ""
    return f"{box.name} exited{code}{when}"


def again(box: Container, now_s: float) -> str:
    """Return a sentence like "qwen35 exited 4 s ago, restarted 2 times"."""
    return f"{exited(box, now_s)}, restarted {'once' if box.restarts == 1 else f'{box.restarts} times'}"
