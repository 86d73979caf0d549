"""The settings of a host's scheduled checks: written by `invoke health.install`, health-settings.json in the state folder."""

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
    """The settings of a host's checks."""

    #: its name in the inventory
    host: str = ""
    #: interval of the checks; 0 if they are not scheduled
    every_s: float = 0.0
    #: interval of the measurements of the decode rate; 0 for never
    smoke_every_s: float = seconds(defaults.SMOKE_EVERY)
    #: tokens of each run of that measurement
    smoke_tokens: int = defaults.SMOKE_TOKENS
    #: what to do if a restart would help
    heal: Literal["none", "restart"] = "none"
    #: at most one restart in this time
    heal_every_s: float = seconds(defaults.HEAL_EVERY)
    #: words of the command that runs on a change of state, with the record on its standard input
    command: tuple[str, ...] = ()
    #: a URL without a secret in it
    webhook: str = ""
    #: a file of the user that holds a URL with a secret
    webhook_file: str = ""
    #: the shape of the POST, see notify_shapes.py
    webhook_format: Shape = "auto"
    #: the folder of node_exporter's textfile collector; empty: the state folder
    textfile: str = ""
    #: the install enabled lingering
    lingers: bool = False
    #: interval of the full hash of the model's files; 0 for never
    verify_every_s: float = 0.0
    #: requests at a gateway may wake servers of this host
    wake: bool = False
    #: hours of that hash on the host's clock, as 02:00-05:00; empty: at any time
    quiet_hours: str = ""
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; `from_json` is its inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """Return the settings of plain JSON, without the fields of another version of sparkwright."""
        limits = built(Limits, data.get("limits") or {})
        return built(cls, data, command=tuple(data.get("command") or ()), limits=limits)

    @classmethod
    def of(cls, state: StateFolder) -> Settings:
        """Read this host's settings; the defaults if nothing is installed."""
        return cls.from_json(state.read(NAME) or {})
