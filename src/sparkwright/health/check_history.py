"""What one check leaves to the next: health-remembered.json in the state folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.health.judging.state_filter import WINDOW
from sparkwright.health.record import STATES, Speed, State
from sparkwright.host.state import StateFolder
from sparkwright.trust.shapes import built

NAME = "health-remembered"


@dataclass
class CheckHistory:
    """seen: states of the last checks, oldest first. state, since_s: what was reported, and since when. cures: how many checks in
    a row said that a restart helps. counted: time_s, start, running, generated, heartbeat of the last look at the counters.
    answered: the start (container and time) that has answered. broken: id, why and since (when it had been verified) of the
    container whose crash loop was stopped.
    joined: the start of this host's rank whose log proved its place in its group, and that place.
    notified: the state that command and webhook were told last. heals: when a restart was begun. failed: of them in a row.
    """

    seen: list[State] = field(default_factory=list)
    state: State | None = None
    since_s: float = 0.0
    cures: int = 0
    counted: dict[str, Any] = field(default_factory=dict)
    answered: str = ""
    broken: dict[str, str] = field(default_factory=dict)
    joined: dict[str, Any] = field(default_factory=dict)
    notified: str = ""
    heals: list[float] = field(default_factory=list)
    failed: int = 0
    speed: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, state: StateFolder) -> CheckHistory:
        """What the last check left; nothing where there was none, or where it can't be read."""
        known = {field.name for field in dataclasses.fields(cls)}
        try:
            found = state.read(NAME) or {}
            past = cls(**{name: value for name, value in found.items() if name in known})
        except (ValueError, TypeError, OSError):
            return cls()
        past.seen = [item for item in past.seen if item in STATES]
        past.state = past.state if past.state in STATES else None
        return past

    def stopped_for(self, container_id: str, good: Mapping[str, Any]) -> str:
        """Why this container was stopped for a crash loop; empty when it was not, or was verified again since."""
        about = self.broken
        ours = about.get("id") == container_id and about.get("since", "") in ("", str(good.get("since", "")))
        return about.get("why", "") if ours else ""

    @staticmethod
    def stopped_by(state: StateFolder, container_id: str) -> str:
        """Which of our runs stopped this container and has not started it again; empty for none."""
        held = state.read("previous") or {}
        return str(held.get("run", "")) if container_id and held.get("id") == container_id else ""

    def save(self, state: StateFolder) -> None:
        """Leave it to the next."""
        self.seen = self.seen[-WINDOW:]
        state.write(NAME, dataclasses.asdict(self))

    @property
    def last_speed(self) -> Speed:
        """The last decode rate that was measured."""
        return built(Speed, self.speed)
