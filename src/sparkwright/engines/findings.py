"""What is wrong with a recipe, and what helps: values that every engine's advice is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Way:
    """A way to resolve a finding. changes: the flags to set; None removes a flag. Empty if flags cannot help."""

    text: str
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """error: the engine refuses to start, or the result is wrong. flag: the flag concerned, for the line in the recipe.

    rule: its name; whoever registers a rule fills it in.
    """

    severity: Severity
    sentence: str
    ways_out: tuple[Way, ...] = ()
    source: str = ""
    flag: str = ""
    rule: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {**asdict(self), "ways_out": [asdict(way) for way in self.ways_out], "flag": self.flag or None}
