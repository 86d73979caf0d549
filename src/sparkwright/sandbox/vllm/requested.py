"""What a request asks for beside a sentence: a tool call, thinking, JSON of a schema, a picture's colour, another language.

As 0.32.0 answers on a CPU: what it refuses, in its words, and which field a parser fills. A parser of another model finds nothing,
and its text stays in the content.
"""

from __future__ import annotations

import base64
import json
import secrets
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkwright.engines.probes import language

if TYPE_CHECKING:
    from sparkwright.sandbox.vllm.engine import Engine

#: the parsers that fit a family's text; of families that are not here every parser does
TOOL_PARSERS = {"Qwen3_5": ("qwen3_coder", "qwen3_xml"), "Qwen3Next": ("qwen3_coder", "qwen3_xml")}
THOUGHT = "The lamp is bright, so the answer is near."
NEEDS_BOTH = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
NEEDS_PARSER = 'tool_choice="{}" requires --tool-call-parser to be set'
PIXEL = 41  # of a PNG's file: where the data of its first chunk of pixels begins


class Refused(Exception):
    """The message of a 400."""


@dataclass(frozen=True)
class Requested:
    """words: the words of the content; empty for the usual sentence. calls: of tools, in their own field. null: the content is null,
    for a parser took all of it. quick: its words need not come at a real one's pace."""

    words: tuple[str, ...] = ()
    calls: list[dict[str, Any]] = field(default_factory=list)
    null: bool = False
    quick: bool = False


def of(engine: Engine, body: Mapping[str, Any]) -> Requested:
    """What a chat asks for. Raises Refused."""
    picture = _picture(body)
    if picture and not engine.config.sees:
        raise Refused(f"{engine.config.served_names[0]} is not a multimodal model")
    null = engine.fault() == "content-null"
    if body.get("tools") and body.get("tool_choice") != "none":
        return _called(engine, body, null)
    form = body.get("response_format") or {}
    if form.get("type") == "json_schema":
        return Requested(
            _words(json.dumps(_instance((form.get("json_schema") or {}).get("schema") or {}))), null=null, quick=True
        )
    if picture:
        return Requested((_colour(picture),), null=null, quick=True)
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is True:
        return _thought(engine, null)
    question = _text(body)
    foreign = next(
        (one.prompt for name, one in language.LANGUAGES.items() if one.prompt == question and name != "en"), ""
    )
    return Requested(_words(foreign), null=null, quick=bool(foreign))


def _called(engine: Engine, body: Mapping[str, Any], null: bool) -> Requested:
    config, choice = engine.config, body.get("tool_choice") or "auto"
    if choice == "auto" and not (config.auto_tools and config.tool_parser):
        raise Refused(NEEDS_BOTH)
    if choice == "required" and not config.tool_parser:
        raise Refused(NEEDS_PARSER.format(choice))
    name = choice["function"]["name"] if isinstance(choice, dict) else body["tools"][0]["function"]["name"]
    schema = next((one["function"].get("parameters") for one in body["tools"] if one["function"]["name"] == name), None)
    given = _instance(schema or {})
    fits = next(
        (ones for family, ones in TOOL_PARSERS.items() if config.architecture.startswith(family)), (config.tool_parser,)
    )
    if choice == "auto" and (config.tool_parser not in fits or engine.fault() == "tool-text"):
        values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in given.items())
        return Requested(
            _words(f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"), null=null, quick=True
        )
    call = {"id": f"chatcmpl-tool-{secrets.token_hex(8)}", "type": "function"}
    calls = [] if null else [{**call, "function": {"name": name, "arguments": json.dumps(given)}}]
    return Requested(_words("a b c d"), calls, null, quick=True)


def _thought(engine: Engine, null: bool) -> Requested:
    """Thinking that was asked for: without a parser, it stays in the content."""
    if engine.config.thinks and engine.fault() != "think-text":
        return Requested(null=null, quick=True)
    return Requested(_words(f"<think>\n{THOUGHT}\n</think>\n\n9.9"), null=null, quick=True)


def _instance(schema: Mapping[str, Any]) -> Any:
    """Something that a schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: _instance(one) for name, one in (schema.get("properties") or {}).items()}
    return {"boolean": True, "integer": 1, "number": 1.0, "array": [], "null": None}.get(str(kind), "Paris")


def _words(text: str) -> tuple[str, ...]:
    return tuple(text[start : start + 6] for start in range(0, len(text), 6))


def _parts(body: Mapping[str, Any]) -> list[Any]:
    messages = body.get("messages") or []
    content = messages[-1].get("content") if messages and isinstance(messages[-1], dict) else None
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _text(body: Mapping[str, Any]) -> str:
    return "".join(str(one.get("text") or "") for one in _parts(body) if isinstance(one, dict))


def _picture(body: Mapping[str, Any]) -> str:
    """The address of the first picture; empty for none."""
    urls = [one.get("image_url") for one in _parts(body) if isinstance(one, dict)]
    return next((str(one.get("url") or "") for one in urls if isinstance(one, dict)), "")


def _colour(url: str) -> str:
    """The colour of a picture's first pixel, in a word."""
    try:
        file = base64.b64decode(url.partition(",")[2], validate=True)
        red, green, blue = zlib.decompressobj().decompress(file[PIXEL:], 4)[1:]
    except (ValueError, zlib.error):
        return "Nothing."
    return "Red." if red > max(green, blue) else "Green." if green > blue else "Blue."
