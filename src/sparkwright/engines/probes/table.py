"""The probes, by their names in recipes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sparkwright.engines.http import Task
from sparkwright.engines.openai_api import CHAT
from sparkwright.engines.probes import apis, dimension, image, json_schema, language, reasoning_field, tool_call
from sparkwright.engines.probes.probe import Probe

#: probes without a value, and with one
PLAIN: Mapping[str, Probe] = {
    probe.name: probe
    for probe in (tool_call.PROBE, reasoning_field.PROBE, json_schema.PROBE, image.PROBE, *apis.PROBES.values())
}
OWN_VARIANTS: Mapping[str, tuple[Probe, ...]] = {
    tool_call.PROBE.name: tool_call.VARIANTS,
    reasoning_field.PROBE.name: reasoning_field.VARIANTS,
    image.PROBE.name: image.VARIANTS,
}
DIMENSION, LANGUAGE = "embedding_dimension", "language"
#: probes for servers of a task
OF_TASK: Mapping[Task, tuple[str, ...]] = {"generate": (*PLAIN, LANGUAGE), "embed": (DIMENSION,), "rerank": ()}
LONGEST_VECTOR = 1 << 17


def name_of(given: Any) -> str:
    """Return the name of a probe as a recipe writes it."""
    return str(next(iter(given)) if isinstance(given, Mapping) else given)


def why_not(given: Any) -> str:
    """Return why this is not a probe, as a sentence; empty if it is one."""
    if isinstance(given, str):
        return "" if given in PLAIN else f"must be one of {_all()}."
    if not isinstance(given, Mapping) or len(given) != 1 or next(iter(given)) not in (DIMENSION, LANGUAGE):
        return f"must be one of {_all()}."
    name, value = next(iter(given.items()))
    if name == LANGUAGE:
        return "" if value in language.LANGUAGES else f"`{LANGUAGE}` must be one of {', '.join(language.LANGUAGES)}."
    if type(value) is not int or not 0 < value <= LONGEST_VECTOR:
        return f"`{DIMENSION}` must be a whole number from 1 to {LONGEST_VECTOR}."
    return ""


def _all() -> str:
    return ", ".join((*PLAIN, f"{{{DIMENSION}: 1024}}", f"{{{LANGUAGE}: de}}"))


def of(listed: Sequence[Any]) -> list[Probe]:
    """Return the probes of a recipe's list. Raises ValueError for an entry that is not a probe."""
    found = []
    for item in listed:
        if reason := why_not(item):
            raise ValueError(f"a probe {reason}")
        name = name_of(item)
        value = item[name] if isinstance(item, Mapping) else None
        found.append(
            PLAIN[name] if value is None else language.probe(value) if name == LANGUAGE else dimension.probe(value)
        )
    return found


def variants(probe: Probe, names: Collection[str] = ()) -> tuple[Probe, ...]:
    """Return the other ways in which clients send the same request: as a stream, in a second turn, with many tools, without
    thinking.

    Args:
        probe: a probe of a recipe.
        names: of all probes of that recipe.
    """
    if probe.name in apis.PROBES:
        return apis.variants(probe, names)
    if probe.path != CHAT:
        return ()
    return OWN_VARIANTS.get(probe.name, (probe.in_a_stream(),))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a probe, for editors."""
    valued = {
        DIMENSION: {"type": "integer", "minimum": 1, "maximum": LONGEST_VECTOR},
        LANGUAGE: {"enum": list(language.LANGUAGES)},
    }
    objects = [
        {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}
        for name, value in valued.items()
    ]
    return {"anyOf": [{"enum": list(PLAIN)}, *objects]}
