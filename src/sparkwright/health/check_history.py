"""State carried from one health check to the next: health-remembered.json in the state folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.health.judging.judge import WINDOW
from sparkwright.health.record import STATES, Speed, State
from sparkwright.host.state import StateFolder
from sparkwright.trust.shapes import built

NAME = "health-remembered"


@dataclass
class CheckHistory:
    """State carried from one health check to the next."""

    #: states of the last checks, oldest first
    seen: list[State] = field(default_factory=list)
    #: the reported state
    state: State | None = None
    #: when the reported state began, seconds since the epoch
    since_s: float = 0.0
    #: consecutive checks that recommended a restart
    cures: int = 0
    #: the counters at the last check: time_s, start, running, token, generated, heartbeat
    counted: dict[str, Any] = field(default_factory=dict)
    #: the start (container and time) that has answered
    answered: str = ""
    #: the container whose crash loop was stopped: id, why, and since (when it had been verified)
    broken: dict[str, str] = field(default_factory=dict)
    #: the start of this host's rank whose log proved its place in its group, and that place
    joined: dict[str, Any] = field(default_factory=dict)
    #: the state of the last notification, by command or webhook
    notified: str = ""
    #: when each restart began, seconds since the epoch
    heals: list[float] = field(default_factory=list)
    #: consecutive restarts that did not help
    failed: int = 0
    #: the last measured decode rate, as the fields of Speed
    speed: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, state: StateFolder) -> CheckHistory:
        """Read the history that the last check saved; empty if there is none or it can't be read."""
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
        """Return why this container was stopped for a crash loop; empty if it was not, or was verified again since."""
        about = self.broken
        ours = about.get("id") == container_id and about.get("since", "") in ("", str(good.get("since", "")))
        return about.get("why", "") if ours else ""

    @staticmethod
    def stopped_by(state: StateFolder, container_id: str) -> str:
        """Return the id of the run of sparkwright that stopped this container and has not started it again; empty for none."""
        held = state.read("previous") or {}
        return str(held.get("run", "")) if container_id and held.get("id") == container_id else ""

    def save(self, state: StateFolder) -> None:
        """Save the history for the next check."""
        self.seen = self.seen[-WINDOW:]
        state.write(NAME, dataclasses.asdict(self))

    @property
    def last_speed(self) -> Speed:
        """The last decode rate that was measured."""
        return built(Speed, self.speed)
