"""Request options beyond plain text: tools, thinking, JSON schemas, pictures, other languages.

Refusals have the wording of the real llama-server, as observed on b11549. Tool calls and separate thinking follow its README:
they need a model that is not random.
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
    """The error message of a response with status 500."""


@dataclass(frozen=True)
class Requested:
    """The answer that a request calls for."""

    #: words of the answer; empty for the default sentence
    words: tuple[str, ...] = ()
    #: tool calls
    calls: list[dict[str, Any]] = field(default_factory=list)
    #: thinking tokens before the answer
    thought: int = 0
    #: thinking and answer tokens together; 0 for as many as the request allows
    tokens: int = 0


def of(config: Config, body: Mapping[str, Any]) -> Requested:
    """Return the answer that a chat request calls for. Raises Refused."""
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
