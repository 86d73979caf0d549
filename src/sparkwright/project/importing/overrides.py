"""sparkrun's `overrides`: values that replace others where a condition holds. Source: sparkrun 0.4.2 core/recipe.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.importing.foreign import mapping, text
from sparkwright.project.importing.report import DROP, Report
from sparkwright.visible import one_line

#: names of a Spark's architecture
ARM = ("arm64", "aarch64")
TAKE = "take"


@dataclass(frozen=True, slots=True)
class Launch:
    """The values that the conditions of overrides refer to."""

    #: number of hosts
    hosts: int
    #: number of hosts over which each layer is split
    tensor: int


def applied(data: dict[str, Any], launch: Launch, report: Report) -> dict[str, Any]:
    """Return the recipe with the values whose condition holds; the user is asked about conditions that are unknown here."""
    rows = data.get("overrides") or []
    if not isinstance(rows, list):
        raise Refused("`overrides` must be a list.")
    found = dict(data)
    for n, given in enumerate(rows, 1):
        override = mapping(given, f"overrides, entry {n}")
        when = mapping(override.get("when"), "when")
        condition = one_line(", ".join(f"{key}: {text(value, key)}" for key, value in when.items()), at_most=120)
        if _taken(when, condition, n, launch, report):
            found |= {
                key: _merged(found, override, key) for key in ("defaults", "env", "container") if override.get(key)
            }
            report.add("translated", f"override {n}", f"taken in, as it holds here ({condition or 'always'})")
        else:
            report.add("dropped", f"override {n}", f"it does not hold here ({condition})")
    return found


def _taken(when: dict[str, Any], condition: str, n: int, launch: Launch, report: Report) -> bool:
    facts = {"nodes": [str(launch.hosts)], "tp": [str(launch.tensor)], "arch": list(ARM)}
    if any(key in facts and text(value, key) not in facts[key] for key, value in when.items()):
        return False
    if when.keys() <= facts.keys():
        return True
    sentence = f"override {n} is for '{condition}', which only you know: take it in, or drop it"
    return report.ask(f"override-{n}", sentence, (TAKE, DROP)) == TAKE


def _merged(data: dict[str, Any], override: dict[str, Any], key: str) -> Any:
    if key == "container":
        return override[key]
    return {**mapping(data.get(key), key), **mapping(override[key], key)}
