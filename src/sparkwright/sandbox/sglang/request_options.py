"""Request options beyond plain text, as a simulated SGLang answers them. Read in the source of 0.5.23.

Tool calls that no parser finds, and thinking, stay in the content as the model wrote them.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.sandbox.serving.request_content import (
    called,
    colour,
    foreign,
    instance,
    known,
    picture_of,
    schema_of,
    words,
)
from sparkwright.sandbox.sglang.config import Config

MULTIMODAL = "ForConditionalGeneration"


@dataclass(frozen=True)
class Requested:
    """The answer that a request calls for."""

    #: words of the answer; empty for the default sentence
    words: tuple[str, ...] = ()
    #: tool calls
    calls: list[dict[str, Any]] = field(default_factory=list)


def of(config: Config, body: Mapping[str, Any]) -> Requested:
    """Return the answer that a chat request calls for."""
    if body.get("tools") and body.get("tool_choice") != "none":
        return _called(config, body)
    if (schema := schema_of(body)) is not None:
        return Requested(words(json.dumps(instance(schema))))
    if (picture := picture_of(body)) and config.architecture.endswith(MULTIMODAL):
        return Requested(words(colour(picture)))
    thinking = (body.get("chat_template_kwargs") or {}).get("enable_thinking")
    if thinking is True and not config.asked["reasoning_parser"]:
        return Requested(words("<think>\nHm.\n</think>\n\n9.9"))
    return Requested(words(known(body) or foreign(body)))


def _called(config: Config, body: Mapping[str, Any]) -> Requested:
    name, given = called(body)
    text = json.dumps({"name": name, "arguments": given})
    if not config.asked["tool_call_parser"]:
        return Requested(words(f"<tool_call>\n{text}\n</tool_call>"))
    function = {"name": name, "arguments": json.dumps(given)}
    call = {"id": f"call_{secrets.token_hex(12)}", "index": 0, "type": "function", "function": function}
    return Requested(words("a b c d"), [call])
