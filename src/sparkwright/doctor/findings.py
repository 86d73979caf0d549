"""What a check says of a host."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warning", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was checked.

    evidence: what was seen, or what could not be seen. fix: the one command that fixes it, empty when none does.
    source: who says that it matters. repair: a name in `fixes.FIXES` when sparkwright may do it itself.
    """

    check: str
    verdict: Verdict
    evidence: str
    fix: str = ""
    source: str = ""
    repair: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
