"""When a check changes the state that is told: one bad check may be chance, one generated token is not.

A server that generates is never told as down, however often it came and went. What waits until that settles is who is notified.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.health.record import State, severity

#: how many checks in a row a worse state needs; one, where it isn't listed. What is stalled was frozen over two checks already.
CONFIRM: dict[State, int] = {"degraded": 2, "unknown": 2}
#: so many changes within so many looks are flapping; then good news have to hold for so many looks
FLAPS = 4
WINDOW = 12
HOLD = 3
WELL: tuple[State, ...] = ("ok", "asleep", "starting")
#: states of a server that generates: seen once, they are so
SERVES: tuple[State, ...] = ("ok", "degraded")


@dataclass(frozen=True, slots=True)
class Damped:
    """state: what is told now. flapping: the server comes and goes."""

    state: State
    flapping: bool = False


def damp(before: State | None, seen: Sequence[State]) -> Damped:
    """The state to tell. before: what was told last, None at the first look. seen: by all looks, oldest first, with this one."""
    now, often = seen[-1], flapping(seen)
    if before is None or now == before:
        return Damped(now, often)
    worse = severity(now) > severity(before)
    needed = CONFIRM.get(now, 1) if worse else HOLD if often and now not in SERVES else 1
    return Damped(now if _held(seen) >= needed else before, often)


def flapping(seen: Sequence[State]) -> bool:
    """Whether it came and went too often of late."""
    changes = sum((value in WELL) != (other in WELL) for value, other in itertools.pairwise(seen[-WINDOW:]))
    return changes >= FLAPS


def is_news(seen: Sequence[State]) -> bool:
    """Whether somebody should be notified of the last state: good news of one that flaps wait until they have held."""
    return not flapping(seen) or seen[-1] not in WELL or _held(seen) >= HOLD


def _held(seen: Sequence[State]) -> int:
    """How many checks in a row saw the last state."""
    recent = seen[-WINDOW:]
    return next((n for n, value in enumerate(reversed(recent)) if value != recent[-1]), len(recent))
