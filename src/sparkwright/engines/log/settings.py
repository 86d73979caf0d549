"""Comparison of two starts of an engine: every setting of their config dumps, and the effect of a flag.

The dump is the engine's own report of its settings. Not all flags appear in it: for a flag that does not, equal dumps prove
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from sparkwright.engines.engine import Engine

Verdict = Literal["differs", "same", "not shown"]


def differences(first: Mapping[str, str], other: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Return the settings that differ, with both values."""
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
    """Return the verdict on two dumps, with the differences."""
    if not against:
        return {"verdict": "", "same": False, "differs": {}}
    verdict = compared(against, found, changed, engine)
    differs = {name: list(values) for name, values in differences(against, found).items()}
    return {"verdict": verdict, "same": verdict == "same", "differs": differs}
