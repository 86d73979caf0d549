"""The settings of a host's scheduled checks, in health-settings.json in the state folder. `invoke health.install` writes them.

The defaults are in sparkwright/defaults.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright import defaults
from sparkwright.health.judging.observation import Limits
from sparkwright.host.state import StateFolder
from sparkwright.trust.shapes import build_dataclass
from sparkwright.units import parse_duration

NAME = "health-settings"


@dataclass(frozen=True)
class Settings:
    """The settings of a host's checks."""

    #: the host's name in the inventory
    host: str = ""
    #: interval of the checks; 0 if they are not scheduled
    every_s: float = 0.0
    #: interval of the decode rate measurements; 0 for never
    smoke_every_s: float = parse_duration(defaults.SMOKE_INTERVAL)
    #: number of tokens per run of a decode rate measurement
    smoke_tokens: int = defaults.SMOKE_TOKEN_COUNT
    #: what to do if a restart would help
    heal: defaults.HealMode = "none"
    #: minimum interval between two restarts
    heal_every_s: float = parse_duration(defaults.MIN_HEAL_INTERVAL)
    #: arguments of the command that runs on a change of state, with the record on standard input
    command: tuple[str, ...] = ()
    #: webhook URL, if it contains no secret
    webhook: str = ""
    #: the user's file that contains the webhook URL, if the URL contains a secret
    webhook_file: str = ""
    #: format of the POST, see webhook_formats.py
    webhook_format: defaults.WebhookFormat = "auto"
    #: folder of node_exporter's textfile collector; if empty, the state folder
    textfile: str = ""
    #: True if the installation enabled lingering (loginctl enable-linger)
    lingers: bool = False
    #: interval of the full hash of the model's files; 0 for never
    verify_every_s: float = 0.0
    #: True if requests at a gateway may wake servers on this host
    wake: bool = False
    #: hours (local time) for the full hash, such as 02:00-05:00; empty for any time
    quiet_hours: str = ""
    limits: Limits = field(default_factory=Limits)

    def to_json(self) -> dict[str, Any]:
        """Return the settings as plain JSON, the inverse of `from_json`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """Parse settings from plain JSON, ignoring fields of other versions of sparkwright."""
        limits = build_dataclass(Limits, data.get("limits") or {})
        return build_dataclass(cls, data, command=tuple(data.get("command") or ()), limits=limits)

    @classmethod
    def load(cls, state: StateFolder) -> Settings:
        """Read this host's settings, or return the defaults if nothing is installed."""
        return cls.from_json(state.read(NAME) or {})
