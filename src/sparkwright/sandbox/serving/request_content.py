"""Readers of request content beyond plain text: tools, JSON schemas, pictures, other languages.

Engines answer these differently; their answers are in their folders.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PIXEL_OFFSET = 41  # offset of the first chunk of pixels in a PNG file
#: letters and words that do not occur in English
_FOREIGN = re.compile(r"[^\W\d_a-zA-Z]|\b(?:een|het|der|das|und|les|los)\b")


def example_value(schema: Mapping[str, Any]) -> Any:
    """Return a value that a schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: example_value(value) for name, value in (schema.get("properties") or {}).items()}
    return {"boolean": True, "integer": 1, "number": 1, "array": [], "null": None}.get(str(kind), "Paris")


def split_pieces(text: str) -> tuple[str, ...]:
    """Return a text in the pieces that it is generated in."""
    return tuple(text[start : start + 6] for start in range(0, len(text), 6))


def _last_message_parts(body: Mapping[str, Any]) -> list[Any]:
    messages = body.get("messages") or []
    content = messages[-1].get("content") if messages and isinstance(messages[-1], dict) else None
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def last_message_text(body: Mapping[str, Any]) -> str:
    """Return the text of the last message."""
    return "".join(str(part.get("text") or "") for part in _last_message_parts(body) if isinstance(part, dict))


def picture_url(body: Mapping[str, Any]) -> str:
    """Return the URL of the first picture, or an empty string."""
    urls = [part.get("image_url") for part in _last_message_parts(body) if isinstance(part, dict)]
    return next((str(url.get("url") or "") for url in urls if isinstance(url, dict)), "")


def picture_colour(url: str) -> str:
    """Return the name of the colour of a picture's first pixel."""
    try:
        file = base64.b64decode(url.partition(",")[2], validate=True)
        red, green, blue = zlib.decompressobj().decompress(file[PIXEL_OFFSET:], 4)[1:]
    except (ValueError, zlib.error):
        return "Nothing."
    return "Red." if red > max(green, blue) else "Green." if green > blue else "Blue."


#: questions with one right answer, and how the simulated model knows it
KNOWN_ANSWERS: tuple[tuple[str, str], ...] = (
    (r"weather in (\w{1,40}) now", "It is sunny in {0}."),
    (r"capital of France", "Paris"),
    (r"capital of Japan", "Tokyo"),
    (r"comes after Monday", "Tuesday"),
    (r"legs does a spider", "8"),
    (r"opposite of hot", "cold"),
    (r"comes next: 3, 6, 9, 12", "15"),
    (r"Repeat this word exactly: (\w{1,40})", "{0}"),
    (r"word 'lamp' in capital", "LAMP"),
    (r"Count from 1 to 5", "1, 2, 3, 4, 5"),
    (r"larger, 9\.11 or 9\.9", "9.9"),
    (r"password of the lighthouse is (\w{1,40})", "{0}"),
)
SUM_QUESTION = re.compile(r"What is (\d{1,9}) (\+|times) (\d{1,9})\?")


def known_answer(body: Mapping[str, Any]) -> str:
    """Return the right answer to a simple question, or an empty string for any other text."""
    question = last_message_text(body)
    if match := SUM_QUESTION.search(question):
        left, right = int(match[1]), int(match[3])
        return str(left + right if match[2] == "+" else left * right)
    answers = ((re.search(pattern, question), answer) for pattern, answer in KNOWN_ANSWERS)
    return next((answer.format(*match.groups()) for match, answer in answers if match), "")


def foreign_question(body: Mapping[str, Any]) -> str:
    """Return the question if it is not in English: an answer in its own words is in its language."""
    question = last_message_text(body)
    return question if _FOREIGN.search(question) else ""


CITY_NAME = re.compile(r"\bin (Paris|Rome|Oslo)\b")


def requested_call(body: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Return (name, arguments) of a tool call: of the required tool, or of one that the last message says to call. None for text.

    An agent offers its tools with every request: a model that called one each time would never answer.
    """
    choice, tools = body.get("tool_choice"), [tool["function"] for tool in body.get("tools") or ()]
    if not tools or choice == "none":
        return None
    text = last_message_text(body)
    name = next((tool["name"] for tool in tools if f"call {tool['name']}".lower() in text.lower()), "")
    if isinstance(choice, dict):
        name = choice["function"]["name"]
    elif choice == "required":
        name = name or tools[0]["name"]
    if not name:
        return None
    arguments = example_value(next((tool.get("parameters") or {} for tool in tools if tool["name"] == name), {}))
    city = CITY_NAME.search(text)
    if isinstance(arguments, dict) and "city" in arguments and city:
        arguments["city"] = city[1]
    return name, arguments


def call_deltas(calls: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the stream deltas of tool calls: each a name, then its arguments."""
    for index, call in enumerate(calls):
        function = call["function"]
        head = {"index": index, "id": call["id"], "type": "function"}
        yield [{**head, "function": {"name": function["name"], "arguments": ""}}]
        yield [{"index": index, "function": {"arguments": function["arguments"]}}]


def answer_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema that the answer must follow, or None."""
    response_format = body.get("response_format") or {}
    return (
        (response_format.get("json_schema") or {}).get("schema") or {}
        if response_format.get("type") == "json_schema"
        else None
    )


#: thinking that no parser finds, and the answer behind it
UNPARSED_THINKING = "<think>\nThe lamp is bright, so the answer is near.\n</think>\n\n9.9"


@dataclass(frozen=True)
class AnswerSpec:
    """The answer that a request calls for."""

    #: words of the content; empty for the default sentence
    words: tuple[str, ...] = ()
    #: tool calls, returned in a field of their own
    calls: list[dict[str, Any]] = field(default_factory=list)
    #: the content is null: a parser took all of it
    null: bool = False
    #: sent without the delay of a real engine
    quick: bool = False
    #: name of the adapter whose words the default sentence has
    adapter: str = ""


def text_answer(text: str) -> AnswerSpec:
    """Return the answer that is a text; without one, the default sentence."""
    return AnswerSpec(split_pieces(text), quick=bool(text))


def tool_call_answer(name: str, arguments: Any, **fields: Any) -> AnswerSpec:
    """Return the answer that is a tool call.

    Args:
        name: of the tool.
        arguments: of the call.
        fields: further fields of the call, with its id.
    """
    function = {"name": name, "arguments": json.dumps(arguments)}
    return AnswerSpec(split_pieces("a b c d"), [{**fields, "type": "function", "function": function}], quick=True)


def requested_answer(body: Mapping[str, Any], *, sees: bool, thinks: bool) -> AnswerSpec:
    """Return the answer that a chat request without a tool call calls for.

    Args:
        body: the request.
        sees: pictures are read.
        thinks: thinking is returned in a field of its own.
    """
    if (schema := answer_schema(body)) is not None:
        return text_answer(json.dumps(example_value(schema)))
    if sees and (picture := picture_url(body)):
        return text_answer(picture_colour(picture))
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is True:
        return AnswerSpec(quick=True) if thinks else text_answer(UNPARSED_THINKING)
    return text_answer(known_answer(body) or foreign_question(body))
