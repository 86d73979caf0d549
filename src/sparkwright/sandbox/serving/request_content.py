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

PIXEL = 41  # offset of the first chunk of pixels in a PNG file
#: letters and words that do not occur in English
_FOREIGN = re.compile(r"[^\W\d_a-zA-Z]|\b(?:een|het|der|das|und|les|los)\b")


def instance(schema: Mapping[str, Any]) -> Any:
    """Return a value that a schema allows."""
    if "enum" in schema:
        return schema["enum"][0]
    kind = schema.get("type")
    if kind == "object":
        return {name: instance(value) for name, value in (schema.get("properties") or {}).items()}
    return {"boolean": True, "integer": 1, "number": 1, "array": [], "null": None}.get(str(kind), "Paris")


def words(text: str) -> tuple[str, ...]:
    """Return a text in the pieces that it is generated in."""
    return tuple(text[start : start + 6] for start in range(0, len(text), 6))


def _parts(body: Mapping[str, Any]) -> list[Any]:
    messages = body.get("messages") or []
    content = messages[-1].get("content") if messages and isinstance(messages[-1], dict) else None
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def text_of(body: Mapping[str, Any]) -> str:
    """Return the text of the last message."""
    return "".join(str(part.get("text") or "") for part in _parts(body) if isinstance(part, dict))


def picture_of(body: Mapping[str, Any]) -> str:
    """Return the URL of the first picture, or an empty string."""
    urls = [part.get("image_url") for part in _parts(body) if isinstance(part, dict)]
    return next((str(url.get("url") or "") for url in urls if isinstance(url, dict)), "")


def colour(url: str) -> str:
    """Return the name of the colour of a picture's first pixel."""
    try:
        file = base64.b64decode(url.partition(",")[2], validate=True)
        red, green, blue = zlib.decompressobj().decompress(file[PIXEL:], 4)[1:]
    except (ValueError, zlib.error):
        return "Nothing."
    return "Red." if red > max(green, blue) else "Green." if green > blue else "Blue."


#: questions with one right answer, and how the simulated model knows it
KNOWN: tuple[tuple[str, str], ...] = (
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
SUM = re.compile(r"What is (\d{1,9}) (\+|times) (\d{1,9})\?")


def known(body: Mapping[str, Any]) -> str:
    """Return the right answer to a simple question, or an empty string for any other text."""
    question = text_of(body)
    if found := SUM.search(question):
        left, right = int(found[1]), int(found[3])
        return str(left + right if found[2] == "+" else left * right)
    answers = ((re.search(pattern, question), answer) for pattern, answer in KNOWN)
    return next((answer.format(*match.groups()) for match, answer in answers if match), "")


def foreign(body: Mapping[str, Any]) -> str:
    """Return the question if it is not in English: an answer in its own words is in its language."""
    question = text_of(body)
    return question if _FOREIGN.search(question) else ""


CITY = re.compile(r"\bin (Paris|Rome|Oslo)\b")


def called(body: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Return (name, arguments) of a tool call: of the required tool, or of one that the last message says to call. None for text.

    An agent offers its tools with every request: a model that called one each time would never answer.
    """
    choice, tools = body.get("tool_choice"), [tool["function"] for tool in body.get("tools") or ()]
    if not tools or choice == "none":
        return None
    text = text_of(body)
    name = next((tool["name"] for tool in tools if f"call {tool['name']}".lower() in text.lower()), "")
    if isinstance(choice, dict):
        name = choice["function"]["name"]
    elif choice == "required":
        name = name or tools[0]["name"]
    if not name:
        return None
    given = instance(next((tool.get("parameters") or {} for tool in tools if tool["name"] == name), {}))
    city = CITY.search(text)
    if isinstance(given, dict) and "city" in given and city:
        given["city"] = city[1]
    return name, given


def call_deltas(calls: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the stream deltas of tool calls: each a name, then its arguments."""
    for index, call in enumerate(calls):
        function = call["function"]
        head = {"index": index, "id": call["id"], "type": "function"}
        yield [{**head, "function": {"name": function["name"], "arguments": ""}}]
        yield [{"index": index, "function": {"arguments": function["arguments"]}}]


def schema_of(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the schema that the answer must follow, or None."""
    form = body.get("response_format") or {}
    return (form.get("json_schema") or {}).get("schema") or {} if form.get("type") == "json_schema" else None


#: thinking that no parser finds, and the answer behind it
UNPARSED = "<think>\nThe lamp is bright, so the answer is near.\n</think>\n\n9.9"


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
    #: name of the adapter whose words the default sentence has
    adapter: str = ""


def spoken(text: str) -> Requested:
    """Return the answer that is a text; without one, the default sentence."""
    return Requested(words(text), quick=bool(text))


def tool_call(name: str, arguments: Any, **about: Any) -> Requested:
    """Return the answer that is a tool call.

    Args:
        name: of the tool.
        arguments: of the call.
        about: further fields of the call, with its id.
    """
    function = {"name": name, "arguments": json.dumps(arguments)}
    return Requested(words("a b c d"), [{**about, "type": "function", "function": function}], quick=True)


def requested(body: Mapping[str, Any], *, sees: bool, thinks: bool) -> Requested:
    """Return the answer that a chat request without a tool call calls for.

    Args:
        body: the request.
        sees: pictures are read.
        thinks: thinking is returned in a field of its own.
    """
    if (schema := schema_of(body)) is not None:
        return spoken(json.dumps(instance(schema)))
    if sees and (picture := picture_of(body)):
        return spoken(colour(picture))
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is True:
        return Requested(quick=True) if thinks else spoken(UNPARSED)
    return spoken(known(body) or foreign(body))
