"""The memory beside a verified server, as the guard of the service measured it, and the meaning of its growth."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.guard.judge import FLOOR_SHARE
from sparkwright.units import format_gib

#: growth that is reported, as a share of MemTotal: 2 GiB of 121.7, as one long prompt adds (vLLM on GB10, 2026)
GROWTH_SHARE = 0.0165


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """The memory beside the verified server, bytes; None: unknown."""

    running: bool = False
    total_bytes: int = 0
    #: available when it was verified
    left_bytes: int | None = None
    #: the lowest since then
    lowest_bytes: int | None = None

    @property
    def grown_bytes(self) -> int:
        """Bytes that the server, or other processes, took since it was verified."""
        if self.left_bytes is None or self.lowest_bytes is None:
            return 0
        return max(0, self.left_bytes - self.lowest_bytes)

    @property
    def growth(self) -> str:
        """Describe the growth; empty if it is negligible."""
        if self.grown_bytes < GROWTH_SHARE * self.total_bytes or self.lowest_bytes is None or self.left_bytes is None:
            return ""
        increase = f"{format_gib(self.grown_bytes)} GiB more are in use than when it was verified"
        return (
            f"{increase}: {format_gib(self.left_bytes)} GiB were available then, {format_gib(self.lowest_bytes)} at the "
            "lowest since"
        )

    @property
    def near_exhaustion(self) -> bool:
        """Return True if as much growth again would exhaust the host's memory."""
        floor = FLOOR_SHARE * self.total_bytes
        return bool(self.growth) and (self.lowest_bytes or 0) - self.grown_bytes < floor
