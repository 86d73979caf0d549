"""When a look changes the state that is told: one bad look may be chance, and a server that comes and goes is not well."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.health.record import State, severity

#: how many looks in a row a worse state needs; one, where it isn't said. What is stalled was frozen over two looks already.
CONFIRM: dict[State, int] = {"degraded": 2, "unknown": 2}
#: so many changes within so many looks are flapping; then a better state has to hold for so many looks
FLAPS = 4
WINDOW = 12
HOLD = 3
WELL: tuple[State, ...] = ("ok", "starting")


@dataclass(frozen=True, slots=True)
class Told:
    """state: what is told now. flapping: why it may be worse than what is seen."""

    state: State
    flapping: bool = False


def damp(before: State | None, seen: Sequence[State]) -> Told:
    """The state to tell. before: what was told last, None at the first look. seen: by all looks, oldest first, with this one."""
    recent = list(seen[-WINDOW:])
    now = recent[-1]
    changes = sum((one in WELL) != (other in WELL) for one, other in itertools.pairwise(recent))
    flapping = changes >= FLAPS
    if before is None or now == before:
        return Told(now, flapping)
    same = next((n for n, one in enumerate(reversed(recent)) if one != now), len(recent))
    worse = severity(now) > severity(before)
    needed = CONFIRM.get(now, 1) if worse else HOLD if flapping else 1
    return Told(now if same >= needed else before, flapping)
