"""Regular expressions of users: one that may take exponential time on hostile input is refused before it is used."""

from __future__ import annotations

import re
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

PATTERN_CHARS = 1000
#: a repeat with a larger maximum counts as one without
ENDLESS = 100


def why_not(pattern: str) -> str:
    """Return what is wrong with a pattern for searching logs, as "is no regular expression: ..."; empty if nothing is."""
    if len(pattern) > PATTERN_CHARS:
        return f"has more than {PATTERN_CHARS} characters"
    try:
        re.compile(pattern)
        nested = _nested(_parser.parse(pattern), inside=False)
    except (re.error, RecursionError, OverflowError) as error:
        return f"is no regular expression: {error}"
    return "repeats what repeats itself, as (a+)+ does, which can take for ever" if nested else ""


def _nested(nodes: Any, *, inside: bool) -> bool:
    """Return True if an unbounded repeat is inside another one."""
    for kind, of in nodes:
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            endless = of[1] is sre.MAXREPEAT or of[1] > ENDLESS
            if (endless and inside) or _nested(of[2], inside=inside or endless):
                return True
        elif any(_nested(part, inside=inside) for part in _parts(kind, of)):
            return True
    return False


def _parts(kind: Any, of: Any) -> list[Any]:
    match kind:
        case sre.SUBPATTERN:
            return [of[-1]]
        case sre.BRANCH:
            return list(of[1])
        case sre.ASSERT | sre.ASSERT_NOT:
            return [of[1]]
        case sre.GROUPREF_EXISTS:
            return [part for part in of[1:] if part is not None]
    return []  # possessive and atomic groups never backtrack
