"""Request options beyond plain text: tool calls, thinking, JSON schemas, the colour of a picture, other languages.

Refusals and parsed fields are those of 0.32.0 on a CPU. The parser of another model finds nothing, and the text stays in the
content.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from sparkwright.sandbox.vllm.engine import Engine

#: parsers that fit a model family; for other families every parser does
TOOL_PARSERS = {"Qwen3_5": ("qwen3_coder", "qwen3_xml"), "Qwen3Next": ("qwen3_coder", "qwen3_xml")}
#: number of tools above which the fault `many-tools` has an effect
MANY_TOOLS = 30
THOUGHT = "The lamp is bright, so the answer is near."
NEEDS_BOTH = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
NEEDS_PARSER = 'tool_choice="{}" requires --tool-call-parser to be set'


class Refused(Exception):
    """The error message of a response with status 400."""


@dataclass(frozen=True)
class Requested:
    """The answer that a request calls for."""

    #: words of the content; empty for the default sentence
    words: tuple[str, ...] = ()
    #: tool calls, returned in a field of their own
    calls: list[dict[str, Any]] = field(default_factory=list)
    #: the content is null: a parser took all of it
    null: bool = False
    #: sent without the delay of a real engine
    quick: bool = False


def of(engine: Engine, body: Mapping[str, Any], *, refuses: bool = True) -> Requested:
    """Return the answer that a chat request calls for. Raises Refused.

    Args:
        engine: the engine that answers.
        body: the request.
        refuses: refuse tools if no parser is configured; otherwise their calls stay in the text.
    """
    picture = picture_of(body)
    if picture and not engine.config.sees:
        raise Refused(f"{engine.config.served_names[0]} is not a multimodal model")
    null = engine.fault() == "content-null"
    if body.get("tools") and body.get("tool_choice") != "none":
        _refuse_tools(engine, body.get("tool_choice") or "auto", refuses=refuses)
    if (call := called(body)) is not None:
        return _called(engine, body, call, null)
    if (schema := schema_of(body)) is not None:
        return Requested(words(json.dumps(instance(schema))), null=null, quick=True)
    if picture:
        return Requested((colour(picture),), null=null, quick=True)
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is True:
        return _thought(engine, null)
    text = known(body) or foreign(body)
    return Requested(words(text), null=null, quick=bool(text))


def _refuse_tools(engine: Engine, choice: Any, *, refuses: bool) -> None:
    """Raise Refused for tools that no configured parser finds."""
    config = engine.config
    if choice == "auto" and refuses and not (config.auto_tools and config.tool_parser):
        raise Refused(NEEDS_BOTH)
    if choice == "required" and not config.tool_parser:
        raise Refused(NEEDS_PARSER.format(choice))


def _called(engine: Engine, body: Mapping[str, Any], call: tuple[str, Any], null: bool) -> Requested:
    config, choice = engine.config, body.get("tool_choice") or "auto"
    parses = bool(config.auto_tools and config.tool_parser)
    name, given = call
    fits = next(
        (ones for family, ones in TOOL_PARSERS.items() if config.architecture.startswith(family)), (config.tool_parser,)
    )
    if choice == "auto" and (not parses or config.tool_parser not in fits or _unparsed(engine.fault(), body)):
        values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items())
        return Requested(
            words(f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"), null=null, quick=True
        )
    about = {"id": f"chatcmpl-tool-{secrets.token_hex(8)}", "type": "function"}
    calls = [] if null else [{**about, "function": {"name": name, "arguments": json.dumps(given)}}]
    return Requested(words("a b c d"), calls, null, quick=True)


def _unparsed(fault: str, body: Mapping[str, Any]) -> bool:
    """Return True if a fault leaves the tool call as text in the content."""
    return (
        fault == "tool-text"
        or (fault == "tool-stream" and bool(body.get("stream")))
        or (fault == "many-tools" and len(body["tools"]) > MANY_TOOLS)
    )


def _thought(engine: Engine, null: bool) -> Requested:
    """Return an answer with thinking; without a parser it stays in the content."""
    if engine.config.thinks and engine.fault() != "think-text":
        return Requested(null=null, quick=True)
    return Requested(words(f"<think>\n{THOUGHT}\n</think>\n\n9.9"), null=null, quick=True)


NUMBERS = 128  # length of the vectors behind a score; embeddings have as many as their model has features
#: words that are too common to matter
COMMON = frozenset(("a", "an", "and", "in", "is", "of", "on", "the", "to", "what"))


def vector(text: str, numbers: int = NUMBERS) -> list[float]:
    """Return the embedding of a text, a vector of length one."""
    found = [0.0] * numbers
    for word in [word for word in re.findall(r"\w+", text.lower()) if word not in COMMON] or ["-"]:
        digest = hashlib.sha256(word.encode()).digest()
        found[digest[0] % numbers] += 1.0 if digest[1] % 2 else -1.0
    length = math.sqrt(sum(item * item for item in found)) or 1.0
    return [item / length for item in found]


def score(query: str, text: str) -> float:
    """Return the cosine similarity of two texts."""
    return sum(number * other for number, other in zip(vector(query), vector(text), strict=True))


def embeddings(model: str, texts: Sequence[str], tokens: int, numbers: int = NUMBERS) -> dict[str, Any]:
    """Return the answer of /v1/embeddings."""
    rows = [{"index": n, "object": "embedding", "embedding": vector(text, numbers)} for n, text in enumerate(texts)]
    about = {"id": f"embd-{secrets.token_hex(8)}", "object": "list", "created": int(time.time()), "model": model}
    return {**about, "data": rows, "usage": {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}}


def ranking(model: str, query: str, texts: Sequence[str], tokens: int) -> dict[str, Any]:
    """Return the answer of /v1/rerank, the best text first."""
    rows = [
        {"index": n, "document": {"text": text}, "relevance_score": score(query, text)} for n, text in enumerate(texts)
    ]
    rows.sort(key=lambda row: -float(str(row["relevance_score"])))
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"id": f"score-{secrets.token_hex(8)}", "model": model, "usage": usage, "results": rows}
