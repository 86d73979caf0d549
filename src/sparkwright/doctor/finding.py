"""What a check says of a host."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warning", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    evidence: what was seen, or what could not be seen. fix: the one command that mends it, empty when none does.
    source: who says that it matters. mend: a name in `mends.MENDS` when sparkwright may do it itself.
    """

    check: str
    verdict: Verdict
    evidence: str
    fix: str = ""
    source: str = ""
    mend: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)
