"""The findings of the doctor's checks."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warning", "bad", "unknown"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check of a host."""

    check: str
    verdict: Verdict
    #: what was seen, or what could not be seen
    evidence: str
    #: the one command that fixes it; empty if none does
    fix: str = ""
    #: where it is documented that it matters
    source: str = ""
    #: a name in `fixes.FIXES`, if sparkwright may do it itself
    repair: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
