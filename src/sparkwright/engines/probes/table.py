"""The probes, by their names in recipes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkwright.engines import api_paths, dialects
from sparkwright.engines.dialects import Dialect
from sparkwright.engines.http import Task
from sparkwright.engines.openai_api import CHAT_PATH
from sparkwright.engines.probes import content, fields
from sparkwright.engines.probes.probe import Probe, ProbeResult, Reply
from sparkwright.visible import format_count

# Probes of the other APIs that generate text: a streamed tool call through each, separate thinking, and a correct token count.
#
# Coding agents use these: Claude Code the Messages API, Codex the Responses API. A server can call tools in one API and not in
# another.

#: more than the thinking budget in the same request
THINKING_TOKENS = 2048


def _build_api_probe(dialect: Dialect) -> Probe:
    return replace(fields.TOOL_CALL_PROBE, name=dialect.name, path=dialect.path, streamed=True)


API_PROBES = {name: _build_api_probe(dialect) for name, dialect in dialects.OTHER_DIALECTS.items()}


def evaluate_token_count(reply: Reply) -> ProbeResult:
    """Check whether the counted tokens are those that the server read. body: `counted` and `prompt`."""
    body = reply.body if isinstance(reply.body, dict) else {}
    counted, prompt = body.get("counted"), body.get("prompt")
    if counted is None or prompt is None:
        return ProbeResult("disproved", "the answers name no numbers of tokens", "another count")
    if counted != prompt:
        evidence = f"it counts {format_count(counted, 'token')} where the answer's usage has {prompt}"
        return ProbeResult("disproved", evidence, "another count")
    return ProbeResult("proved", f"counts {format_count(counted, 'token')}, as the answer's usage does")


#: with a wrong count an agent never compacts a full context
COUNT_TOKENS_PROBE = Probe(
    f"{dialects.MESSAGES.name}, count_tokens",
    api_paths.COUNT_TOKENS,
    fields.TOOL_CALL_PROBE.body,
    evaluate_token_count,
    thinks=None,
    variant=True,
)


def api_variants(probe: Probe, names: Collection[str]) -> tuple[Probe, ...]:
    """Return the further requests for the API of a probe. names: of all probes of the recipe."""
    body = {**probe.body, "messages": fields.SECOND_TURN_MESSAGES}
    further_probes = [
        replace(probe, name=f"{probe.name}, second turn", body=body, rule=fields.evaluate_second_turn, variant=True),
        replace(probe, name=f"{probe.name}, not streamed", streamed=False, variant=True),
    ]
    if fields.REASONING_PROBE.name in names:
        thinking = {**fields.REASONING_PROBE.body, "max_tokens": THINKING_TOKENS}
        thinking_probe = replace(fields.REASONING_PROBE, path=probe.path, body=thinking, streamed=True, variant=True)
        further_probes.append(replace(thinking_probe, name=f"{probe.name}, thinking"))
    return (*further_probes, COUNT_TOKENS_PROBE) if probe.name == dialects.MESSAGES.name else tuple(further_probes)


#: probes without a value, and with one
PLAIN_PROBES: Mapping[str, Probe] = {
    probe.name: probe
    for probe in (
        fields.TOOL_CALL_PROBE,
        fields.REASONING_PROBE,
        content.JSON_SCHEMA_PROBE,
        content.IMAGE_PROBE,
        *API_PROBES.values(),
    )
}
VARIANTS: Mapping[str, tuple[Probe, ...]] = {
    fields.TOOL_CALL_PROBE.name: fields.TOOL_CALL_VARIANTS,
    fields.REASONING_PROBE.name: fields.REASONING_VARIANTS,
    content.IMAGE_PROBE.name: content.IMAGE_VARIANTS,
}
DIMENSION, LANGUAGE = "embedding_dimension", "language"
#: probes for servers of a task
PROBES_BY_TASK: Mapping[Task, tuple[str, ...]] = {
    "generate": (*PLAIN_PROBES, LANGUAGE),
    "embed": (DIMENSION,),
    "rerank": (),
}
MAX_DIMENSION = 1 << 17


def probe_name(entry: Any) -> str:
    """Return the name of a probe as a recipe writes it."""
    return str(next(iter(entry)) if isinstance(entry, Mapping) else entry)


def check_probe(entry: Any) -> str:
    """Return why this is not a probe, as a sentence; empty if it is one."""
    if isinstance(entry, str):
        return "" if entry in PLAIN_PROBES else f"must be one of {_list_choices()}."
    if not isinstance(entry, Mapping) or len(entry) != 1 or next(iter(entry)) not in (DIMENSION, LANGUAGE):
        return f"must be one of {_list_choices()}."
    name, value = next(iter(entry.items()))
    if name == LANGUAGE:
        return "" if value in content.LANGUAGES else f"`{LANGUAGE}` must be one of {', '.join(content.LANGUAGES)}."
    if type(value) is not int or not 0 < value <= MAX_DIMENSION:
        return f"`{DIMENSION}` must be a whole number from 1 to {MAX_DIMENSION}."
    return ""


def _list_choices() -> str:
    return ", ".join((*PLAIN_PROBES, f"{{{DIMENSION}: 1024}}", f"{{{LANGUAGE}: de}}"))


def parse_probes(entries: Sequence[Any]) -> list[Probe]:
    """Return the probes of a recipe's list. Raises ValueError for an entry that is not a probe."""
    probes = []
    for entry in entries:
        if reason := check_probe(entry):
            raise ValueError(f"a probe {reason}")
        name = probe_name(entry)
        value = entry[name] if isinstance(entry, Mapping) else None
        probes.append(
            PLAIN_PROBES[name]
            if value is None
            else content.build_language_probe(value)
            if name == LANGUAGE
            else content.build_dimension_probe(value)
        )
    return probes


def variants(probe: Probe, names: Collection[str] = ()) -> tuple[Probe, ...]:
    """Return the other ways in which clients send the same request: as a stream, in a second turn, with many tools, without
    thinking.

    Args:
        probe: a probe of a recipe.
        names: of all probes of that recipe.
    """
    if probe.name in API_PROBES:
        return api_variants(probe, names)
    if probe.path != CHAT_PATH:
        return ()
    return VARIANTS.get(probe.name, (probe.as_stream(),))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a probe, for editors."""
    valued = {
        DIMENSION: {"type": "integer", "minimum": 1, "maximum": MAX_DIMENSION},
        LANGUAGE: {"enum": list(content.LANGUAGES)},
    }
    objects = [
        {"type": "object", "properties": {name: value}, "required": [name], "additionalProperties": False}
        for name, value in valued.items()
    ]
    return {"anyOf": [{"enum": list(PLAIN_PROBES)}, *objects]}
