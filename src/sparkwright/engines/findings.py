"""Findings about a recipe and ways to resolve them, as every engine's advice returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Way:
    """A way to resolve a finding."""

    text: str
    #: flags to set; None removes a flag; empty if flags cannot help
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a recipe."""

    #: error: the engine refuses to start, or the result is wrong
    severity: Severity
    sentence: str
    ways_out: tuple[Way, ...] = ()
    source: str = ""
    #: the flag concerned, to find the line in the recipe
    flag: str = ""
    #: name of the rule; filled in when a rule is registered
    rule: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return {**asdict(self), "ways_out": [asdict(way) for way in self.ways_out], "flag": self.flag or None}
