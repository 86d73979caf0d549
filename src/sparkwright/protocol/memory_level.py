"""Available memory of a host since its server was verified, as the service's memory guard measured it."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.guard.judge import FLOOR_SHARE
from sparkwright.units import format_gib

#: minimum growth that is reported, as a share of MemTotal: 2 GiB of 121.7, as one long prompt adds (vLLM on GB10, 2026)
MIN_GROWTH_SHARE = 0.0165


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """Available memory of a host since its server was verified."""

    running: bool = False
    total_bytes: int = 0
    #: available memory when the server was verified; None if unknown
    left_bytes: int | None = None
    #: lowest available memory since then; None if unknown
    lowest_bytes: int | None = None

    @property
    def growth_bytes(self) -> int:
        """Memory that the server or other processes allocated since it was verified; 0 if unknown."""
        if self.left_bytes is None or self.lowest_bytes is None:
            return 0
        return max(0, self.left_bytes - self.lowest_bytes)

    @property
    def growth_message(self) -> str:
        """A message about the growth; empty if it is negligible."""
        if (
            self.growth_bytes < MIN_GROWTH_SHARE * self.total_bytes
            or self.lowest_bytes is None
            or self.left_bytes is None
        ):
            return ""
        return (
            f"{format_gib(self.growth_bytes)} GiB more are in use than when it was verified: {format_gib(self.left_bytes)} GiB "
            f"were available then, {format_gib(self.lowest_bytes)} at the lowest since"
        )

    @property
    def is_near_exhaustion(self) -> bool:
        """True if the same growth again would exhaust the host's memory."""
        floor = FLOOR_SHARE * self.total_bytes
        return bool(self.growth_message) and (self.lowest_bytes or 0) - self.growth_bytes < floor
