"""An experiment: arms in the order in which they serve, and the cells of each turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.bench.arms import Arm
from sparkwright.measure.workload import WORKLOAD, Load


@dataclass(frozen=True)
class Cell:
    """One run of one load on one arm."""

    key: str
    arm: str
    load: Load
    repetition: int


@dataclass(frozen=True)
class Turn:
    """One start of an arm, which measures its cells; without cells only its settings are read."""

    arm: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Experiment:
    """An experiment: its arms and their turns."""

    command: str
    name: str
    arms: tuple[Arm, ...]
    turns: tuple[Turn, ...]
    #: limits of its loads, sentences
    notes: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        return [cell.key for turn in self.turns for cell in turn.cells]

    @property
    def compares(self) -> bool:
        """True if two arms are compared with each other."""
        return self.command != "sweep" and len(self.arms) == 2

    def without(self, finished: Mapping[str, Any]) -> Experiment:
        """Return the experiment without its finished cells, and without the turns that have none left."""
        left = [
            replace(turn, cells=tuple(cell for cell in turn.cells if cell.key not in finished)) for turn in self.turns
        ]
        return replace(self, turns=tuple(turn for turn in left if turn.cells))


def order_of(names: Sequence[str], repeat: int, *, pair: bool) -> list[str]:
    """Return the order of the arms.

    A pair is measured as A B B A, so that a drift of the host affects both equally. Other arms go forwards, then backwards.
    """
    if pair:
        return [name for _ in range(repeat) for name in (*names, *reversed(names))]
    return [name for turn in range(repeat) for name in (names if turn % 2 == 0 else list(reversed(names)))]


def turns(order: Sequence[str], loads: Sequence[Load], identities: Mapping[str, Any]) -> tuple[Turn, ...]:
    """Return the turns with their cells.

    Args:
        order: names of the arms, in the order of their turns.
        loads: measured in each turn.
        identities: by arm, everything that identifies it; a changed command makes another cell.
    """
    seen: dict[str, int] = {}
    found = []
    for arm in order:
        seen[arm] = seen.get(arm, 0) + 1
        cells = [Cell(_key(arm, load, identities[arm], seen[arm]), arm, load, seen[arm]) for load in loads]
        found.append(Turn(arm, tuple(cells)))
    return tuple(found)


def _key(arm: str, load: Load, identity: Any, repetition: int) -> str:
    exact = json.dumps([WORKLOAD, load.to_json(), identity], sort_keys=True, default=str)
    return f"{arm}.{load.kind}.{hashlib.sha256(exact.encode()).hexdigest()[:10]}.{repetition}"
