"""The probes by their names in recipes, and the variants of each probe."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sparkwright.engines import api_paths, dialects
from sparkwright.engines.http import Task
from sparkwright.engines.openai_api import CHAT_PATH
from sparkwright.engines.probes import content, fields
from sparkwright.engines.probes.probe import Probe, ProbeResult, Reply
from sparkwright.visible import format_count

# Probes of APIs other than chat: a streamed tool call, separate thinking, and a correct token count.
#
# Coding agents use them: Claude Code uses the Messages API, Codex the Responses API. Tool calls may work in one API and fail in
# another.

#: token limit of a request with thinking; above the request's thinking budget
THINKING_TOKENS = 2048

API_PROBES = {
    name: replace(fields.TOOL_CALL_PROBE, name=dialect.name, path=dialect.path, streamed=True)
    for name, dialect in dialects.OTHER_DIALECTS.items()
}


def evaluate_token_count(reply: Reply) -> ProbeResult:
    """Check that count_tokens agrees with the usage of an answer to the same prompt.

    The body has both token counts: `counted` and `prompt`.
    """
    body = reply.body if isinstance(reply.body, dict) else {}
    counted_tokens, prompt_tokens = body.get("counted"), body.get("prompt")
    if counted_tokens is None or prompt_tokens is None:
        return ProbeResult("disproved", "the answers contain no token counts", "another count")
    if counted_tokens != prompt_tokens:
        evidence = f"it counts {format_count(counted_tokens, 'token')}, but the answer's usage has {prompt_tokens}"
        return ProbeResult("disproved", evidence, "another count")
    return ProbeResult("proved", f"counts {format_count(counted_tokens, 'token')}, like the answer's usage")


#: agents need the count to compact the context in time
COUNT_TOKENS_PROBE = Probe(
    f"{dialects.MESSAGES.name}, count_tokens",
    api_paths.COUNT_TOKENS_PATH,
    fields.TOOL_CALL_PROBE.body,
    evaluate_token_count,
    thinks=None,
    variant=True,
)


def api_variants(probe: Probe, names: Collection[str]) -> tuple[Probe, ...]:
    """Return the variants of an API's probe. names: names of all probes in the recipe."""
    body = {**probe.body, "messages": fields.SECOND_TURN_MESSAGES}
    variants = [
        replace(probe, name=f"{probe.name}, second turn", body=body, rule=fields.evaluate_second_turn, variant=True),
        replace(probe, name=f"{probe.name}, not streamed", streamed=False, variant=True),
    ]
    if fields.REASONING_PROBE.name in names:
        body = {**fields.REASONING_PROBE.body, "max_tokens": THINKING_TOKENS}
        thinking_probe = replace(fields.REASONING_PROBE, path=probe.path, body=body, streamed=True, variant=True)
        variants.append(replace(thinking_probe, name=f"{probe.name}, thinking"))
    return (*variants, COUNT_TOKENS_PROBE) if probe.name == dialects.MESSAGES.name else tuple(variants)


#: probes without a value
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
#: names of the probes with a value
DIMENSION, LANGUAGE = "embedding_dimension", "language"
#: names of the probes for each task
PROBES_BY_TASK: Mapping[Task, tuple[str, ...]] = {
    "generate": (*PLAIN_PROBES, LANGUAGE),
    "embed": (DIMENSION,),
    "rerank": (),
}
MAX_DIMENSION = 1 << 17


def probe_name(entry: Any) -> str:
    """Return the name of a probe from its entry in a recipe."""
    return str(next(iter(entry)) if isinstance(entry, Mapping) else entry)


def probe_error(entry: Any) -> str:
    """Return why an entry is not a valid probe, such as "must be one of ..."; empty if it is valid."""
    if isinstance(entry, str):
        return "" if entry in PLAIN_PROBES else f"must be one of {_list_choices()}."
    if not isinstance(entry, Mapping) or len(entry) != 1 or next(iter(entry)) not in (DIMENSION, LANGUAGE):
        return f"must be one of {_list_choices()}."
    name, value = next(iter(entry.items()))
    if name == LANGUAGE:
        is_language = isinstance(value, str) and value in content.LANGUAGES
        return "" if is_language else f"`{LANGUAGE}` must be one of {', '.join(content.LANGUAGES)}."
    if type(value) is not int or not 0 < value <= MAX_DIMENSION:
        return f"`{DIMENSION}` must be a whole number from 1 to {MAX_DIMENSION}."
    return ""


def _list_choices() -> str:
    return ", ".join((*PLAIN_PROBES, f"{{{DIMENSION}: 1024}}", f"{{{LANGUAGE}: de}}"))


def parse_probes(entries: Sequence[Any]) -> list[Probe]:
    """Return the probes for the entries of a recipe. Raises ValueError for an invalid entry."""
    probes = []
    for entry in entries:
        if problem := probe_error(entry):
            raise ValueError(f"a probe {problem}")
        name = probe_name(entry)
        if not isinstance(entry, Mapping):
            probes.append(PLAIN_PROBES[name])
        elif name == LANGUAGE:
            probes.append(content.build_language_probe(entry[name]))
        else:
            probes.append(content.build_dimension_probe(entry[name]))
    return probes


def variants(probe: Probe, names: Collection[str] = ()) -> tuple[Probe, ...]:
    """Return the variants of a probe, which resemble other clients' requests, such as a stream, a second turn or many tools.

    names: names of all probes in the recipe.
    """
    if probe.name in API_PROBES:
        return api_variants(probe, names)
    if probe.path != CHAT_PATH:
        return ()
    return VARIANTS.get(probe.name, (probe.as_stream(),))


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a probe in a recipe."""
    value_schemas = {
        DIMENSION: {"type": "integer", "minimum": 1, "maximum": MAX_DIMENSION},
        LANGUAGE: {"enum": list(content.LANGUAGES)},
    }
    objects = [
        {"type": "object", "properties": {name: value_schema}, "required": [name], "additionalProperties": False}
        for name, value_schema in value_schemas.items()
    ]
    return {"anyOf": [{"enum": list(PLAIN_PROBES)}, *objects]}
