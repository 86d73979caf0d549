"""What a request asks for beside a sentence. What it refuses is in the words of the real llama-server, as seen on b11549.

A call of a tool, and thinking apart, are as its README has them: they need a model that is not random.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.sandbox.llama_cpp.config import Config
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

NO_PICTURES = "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
NO_TOOLS = "tools param requires --jinja flag"
THOUGHT = 24  # tokens
ANSWER = 8


class Refused(Exception):
    """The message of a 500."""


@dataclass(frozen=True)
class Requested:
    """words: of the answer; empty for the usual sentence. calls: of tools. thought: tokens of thinking before the answer.
    tokens: of both; 0 for as many as it may have."""

    words: tuple[str, ...] = ()
    calls: list[dict[str, Any]] = field(default_factory=list)
    thought: int = 0
    tokens: int = 0


def of(config: Config, body: Mapping[str, Any]) -> Requested:
    """What a chat asks for. Raises Refused."""
    picture = picture_of(body)
    if picture and not config.sees:
        raise Refused(NO_PICTURES)
    if body.get("tools") and body.get("tool_choice") != "none":
        return _called(config, body)
    if (schema := schema_of(body)) is not None:
        return _reply(json.dumps(instance(schema)))
    if picture:
        return _reply(colour(picture))
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is True:
        return Requested(thought=THOUGHT, tokens=THOUGHT + ANSWER) if config.thinks else _reply("<think>Hm.</think>9.9")
    return _reply(known(body) or foreign(body))


def _reply(text: str) -> Requested:
    pieces = words(text)
    return Requested(pieces, tokens=len(pieces))


def _called(config: Config, body: Mapping[str, Any]) -> Requested:
    if not config.jinja:
        raise Refused(NO_TOOLS)
    name, given = called(body)
    function = {"name": name, "arguments": json.dumps(given)}
    call = {"type": "function", "function": function, "id": secrets.token_hex(16)}
    return Requested(words("a b c d"), [call], tokens=2)
