"""The probe of JSON of a given schema. Each value is one of few, so that any model's answer is short and ends."""

from __future__ import annotations

import json
from typing import Any

from sparkwright.engines.openai_api import CHAT
from sparkwright.engines.probes.probe import Probe, Reply, Seen, quoted

CITIES = ("Paris", "Rome", "Oslo")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": list(CITIES)}, "capital": {"type": "boolean"}},
    "required": ["city", "capital"],
    "additionalProperties": False,
}
#: the JSON is 20 tokens or so; gpt-oss always thinks before it
TOKENS = 512
LONGEST_CHARS = 1 << 14


def judge(reply: Reply) -> Seen:
    """Judge if the content is JSON of the schema."""
    text = reply.content
    if reply.cut and not _holds(text):
        return Seen("inconclusive", f"the JSON had not ended within {TOKENS} tokens: {quoted(text)}")
    if not text:
        return Seen("disproved", "content is null instead of JSON", "content null")
    if not _holds(text):
        return Seen("disproved", f"the content is no JSON of the schema: {quoted(text)}", "not the schema")
    return Seen("proved", "the content is JSON of the schema")


def _holds(text: str) -> bool:
    try:
        found: Any = json.loads(text) if len(text) <= LONGEST_CHARS else None
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(found, dict)
        and set(found) == {"city", "capital"}
        and found["city"] in CITIES
        and (isinstance(found["capital"], bool))
    )


PROBE = Probe(
    "json_schema",
    CHAT,
    {
        "messages": [
            {"role": "user", "content": "Name a city of Norway, and say whether it is the capital. Answer in JSON."}
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "place", "strict": True, "schema": SCHEMA}},
        "max_tokens": TOKENS,
    },
    judge,
    refused="not the schema",
)
