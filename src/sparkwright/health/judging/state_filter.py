"""Damping of the reported state: one bad check may be chance, one generated token is not.

A server that generates is never reported as down, even if it is flapping. Only the notifications wait until that settles.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.health.record import State, severity

#: consecutive checks that confirm a worse state; 1 by default. A stalled server was frozen over two checks already.
CONFIRM: dict[State, int] = {"degraded": 2, "unknown": 2}
#: FLAPS changes within WINDOW checks are flapping; then good news must hold for HOLD checks
FLAPS = 4
WINDOW = 12
HOLD = 3
WELL: tuple[State, ...] = ("ok", "asleep", "starting")
#: states of a server that generates: one check is enough
SERVES: tuple[State, ...] = ("ok", "degraded")


@dataclass(frozen=True, slots=True)
class Damped:
    """The state to report after damping."""

    #: the reported state
    state: State
    #: the server alternates between good and bad
    flapping: bool = False


def damp(before: State | None, seen: Sequence[State]) -> Damped:
    """Return the state to report.

    Args:
        before: the last reported state; None at the first check.
        seen: the states of all checks, oldest first, with this one.
    """
    now, often = seen[-1], flapping(seen)
    if before is None or now == before:
        return Damped(now, often)
    worse = severity(now) > severity(before)
    needed = CONFIRM.get(now, 1) if worse else HOLD if often and now not in SERVES else 1
    return Damped(now if _held(seen) >= needed else before, often)


def flapping(seen: Sequence[State]) -> bool:
    """Return True if the server alternated between good and bad too often lately."""
    changes = sum((value in WELL) != (other in WELL) for value, other in itertools.pairwise(seen[-WINDOW:]))
    return changes >= FLAPS


def is_news(seen: Sequence[State]) -> bool:
    """Return True if the last state is worth a notification: good news of a flapping server wait until they have held."""
    return not flapping(seen) or seen[-1] not in WELL or _held(seen) >= HOLD


def _held(seen: Sequence[State]) -> int:
    """Return the number of consecutive checks that saw the last state."""
    recent = seen[-WINDOW:]
    return next((n for n, value in enumerate(reversed(recent)) if value != recent[-1]), len(recent))
