"""The probes, by their names in recipes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkwright.engines import api_paths, dialects
from sparkwright.engines.dialects import Dialect
from sparkwright.engines.http import Task
from sparkwright.engines.openai_api import CHAT
from sparkwright.engines.probes import content, fields
from sparkwright.engines.probes.probe import Probe, Reply, Seen
from sparkwright.visible import count

# Probes of the other APIs that generate text: a streamed tool call through each, separate thinking, and a correct token count.
#
# Coding agents use these: Claude Code the Messages API, Codex the Responses API. A server can call tools in one API and not in
# another.

#: more than the thinking budget in the same request
THINKING_TOKENS = 2048


def _probe(dialect: Dialect) -> Probe:
    return replace(fields.TOOL_CALL_PROBE, name=dialect.name, path=dialect.path, streamed=True)


PROBES = {name: _probe(dialect) for name, dialect in dialects.OTHERS.items()}


def judge_count(reply: Reply) -> Seen:
    """Judge if the counted tokens are those that the server read. body: `counted` and `prompt`."""
    body = reply.body if isinstance(reply.body, dict) else {}
    counted, prompt = body.get("counted"), body.get("prompt")
    if counted is None or prompt is None:
        return Seen("disproved", "the answers name no numbers of tokens", "another count")
    if counted != prompt:
        evidence = f"it counts {count(counted, 'token')} where the answer's usage has {prompt}"
        return Seen("disproved", evidence, "another count")
    return Seen("proved", f"counts {count(counted, 'token')}, as the answer's usage does")


#: with a wrong count an agent never compacts a full context
COUNT = Probe(
    f"{dialects.MESSAGES.name}, count_tokens",
    api_paths.COUNT_TOKENS,
    fields.TOOL_CALL_PROBE.body,
    judge_count,
    thinks=None,
    variant=True,
)


def api_variants(probe: Probe, names: Collection[str]) -> tuple[Probe, ...]:
    """Return the further requests for the API of a probe. names: of all probes of the recipe."""
    body = {**probe.body, "messages": fields.TURNS}
    found = [
        replace(probe, name=f"{probe.name}, second turn", body=body, rule=fields.judge_second, variant=True),
        replace(probe, name=f"{probe.name}, not streamed", streamed=False, variant=True),
    ]
    if fields.REASONING_PROBE.name in names:
        thinking = {**fields.REASONING_PROBE.body, "max_tokens": THINKING_TOKENS}
        about = replace(fields.REASONING_PROBE, path=probe.path, body=thinking, streamed=True, variant=True)
        found.append(replace(about, name=f"{probe.name}, thinking"))
    return (*found, COUNT) if probe.name == dialects.MESSAGES.name else tuple(found)


#: probes without a value, and with one
PLAIN: Mapping[str, Probe] = {
    probe.name: probe
    for probe in (
        fields.TOOL_CALL_PROBE,
        fields.REASONING_PROBE,
        content.JSON_SCHEMA_PROBE,
        content.IMAGE_PROBE,
        *PROBES.values(),
    )
}
OWN_VARIANTS: Mapping[str, tuple[Probe, ...]] = {
    fields.TOOL_CALL_PROBE.name: fields.TOOL_CALL_VARIANTS,
    fields.REASONING_PROBE.name: fields.REASONING_VARIANTS,
    content.IMAGE_PROBE.name: content.IMAGE_VARIANTS,
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
        return "" if value in content.LANGUAGES else f"`{LANGUAGE}` must be one of {', '.join(content.LANGUAGES)}."
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
            PLAIN[name]
            if value is None
            else content.probe_language(value)
            if name == LANGUAGE
            else content.probe_dimension(value)
        )
    return found


def variants(probe: Probe, names: Collection[str] = ()) -> tuple[Probe, ...]:
    """Return the other ways in which clients send the same request: as a stream, in a second turn, with many tools, without
    thinking.

    Args:
        probe: a probe of a recipe.
        names: of all probes of that recipe.
    """
    if probe.name in PROBES:
        return api_variants(probe, names)
    if probe.path != CHAT:
        return ()
    return OWN_VARIANTS.get(probe.name, (probe.in_a_stream(),))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a probe, for editors."""
    valued = {
        DIMENSION: {"type": "integer", "minimum": 1, "maximum": LONGEST_VECTOR},
        LANGUAGE: {"enum": list(content.LANGUAGES)},
    }
    objects = [
        {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}
        for name, value in valued.items()
    ]
    return {"anyOf": [{"enum": list(PLAIN)}, *objects]}
