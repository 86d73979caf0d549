"""How a host is checked on a schedule: what `invoke health.install` leaves there, health-settings.json in the state folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.health.judging.observation import Limits
from sparkwright.health.notify_shapes import Shape
from sparkwright.host.state import StateFolder
from sparkwright.trust.shapes import built
from sparkwright.units import seconds

NAME = "health-settings"


@dataclass(frozen=True)
class Settings:
    """host: its name in the inventory. every_s: 0 when it is not scheduled. smoke_every_s: the decode rate is measured so often;
    0 never. smoke_tokens: of each of its runs. heal: what to do when a restart would help.
    heal_every_s: at most one restart in this time. command: told of a change of state, as words; the record is its
    standard input. webhook: a URL without a secret in it. webhook_file: a file of the user's that holds one with.
    webhook_format: the shape of what is POSTed, see notify_shapes.py.
    textfile: the folder of node_exporter's textfile collector; empty: the state folder. lingers: the install switched linger on.
    """

    host: str = ""
    every_s: float = 0.0
    smoke_every_s: float = seconds(defaults.SMOKE_EVERY)
    smoke_tokens: int = defaults.SMOKE_TOKENS
    heal: Literal["none", "restart"] = "none"
    heal_every_s: float = seconds(defaults.HEAL_EVERY)
    command: tuple[str, ...] = ()
    webhook: str = ""
    webhook_file: str = ""
    webhook_format: Shape = "auto"
    textfile: str = ""
    lingers: bool = False
    #: the model's files are hashed again so often; 0: never. quiet_hours: 02:00-05:00 on the host's clock; empty: at any time
    verify_every_s: float = 0.0
    quiet_hours: str = ""
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; `from_json` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """The settings again; what another version of sparkwright wrote beside them is left out."""
        limits = built(Limits, data.get("limits") or {})
        return built(cls, data, command=tuple(data.get("command") or ()), limits=limits)

    @classmethod
    def of(cls, state: StateFolder) -> Settings:
        """This host's; the defaults where nothing was installed."""
        return cls.from_json(state.read(NAME) or {})
