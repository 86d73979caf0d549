"""Two starts of an engine held against each other: every setting of their config dumps, and what a flag did to them.

The dump is the engine's own word on its settings. Not all flags show in it: of one that does not, equal dumps prove nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from sparkwright.engines.engine import Engine

Verdict = Literal["differs", "same", "not shown"]


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Settings that are not the same, with both values."""
    names = [*first, *(name for name in other if name not in first)]
    return {name: (first.get(name), other.get(name)) for name in names if first.get(name) != other.get(name)}


def compared(first: Mapping[str, str], other: Mapping[str, str], changed: Collection[str], engine: Engine) -> Verdict:
    """Return the verdict on two starts' settings. changed: the flags in which their commands differ.

    "same" is proof: all these flags show in the dumps, and the dumps do not differ.
    """
    if differences(first, other):
        return "differs"
    return "same" if first and all(_shown(flag, first, engine) for flag in changed) else "not shown"


def _shown(flag: str, settings: Mapping[str, str], engine: Engine) -> bool:
    name = engine.flags.canonical(flag)
    usual = (name.replace("-", "_"),)
    return any(known in settings for known in engine.log.setting_names.get(name, usual))


def judged(against: dict[str, Any] | None, found: dict[str, str], changed: list[str], engine: Engine) -> dict[str, Any]:
    """Verdict, and what differs, of two dumps."""
    if not against:
        return {"verdict": "", "same": False, "differs": {}}
    verdict = compared(against, found, changed, engine)
    differs = {name: list(values) for name, values in differences(against, found).items()}
    return {"verdict": verdict, "same": verdict == "same", "differs": differs}
