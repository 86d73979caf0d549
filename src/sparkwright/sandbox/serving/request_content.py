"""The answer that a chat request calls for: a tool call, JSON that matches a schema, a picture's colour, or text.

The response formats are in the folders of the engines.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PIXEL_OFFSET = 41  # offset of the compressed pixels in the small PNG files of the probes
#: matches text in other languages: a letter other than a to z, or a common word
_FOREIGN_TEXT_PATTERN = re.compile(r"[^\W\d_a-zA-Z]|\b(?:een|het|der|das|und|les|los)\b")
#: pattern of a question and its correct answer; {0} is the pattern's first group
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
CITY_NAME_PATTERN = re.compile(r"\bin (Paris|Rome|Oslo)\b")
SUM_QUESTION_PATTERN = re.compile(r"What is (\d{1,9}) (\+|times) (\d{1,9})\?")
#: content that a server without a reasoning parser returns: the thinking, then the answer
UNPARSED_THINKING = "<think>\nThe lamp is bright, so the answer is near.\n</think>\n\n9.9"


def example_value(schema: Mapping[str, Any]) -> Any:
    """Return a value that is valid under a schema."""
    if "enum" in schema:
        return schema["enum"][0]
    value_type = schema.get("type")
    if value_type == "object":
        return {
            name: example_value(property_schema) for name, property_schema in (schema.get("properties") or {}).items()
        }
    return {"boolean": True, "integer": 1, "number": 1, "array": [], "null": None}.get(str(value_type), "Paris")


def split_pieces(text: str) -> tuple[str, ...]:
    """Split text into the pieces that are sent as its tokens."""
    return tuple(text[start : start + 6] for start in range(0, len(text), 6))


def _last_message_parts(body: Mapping[str, Any]) -> list[Any]:
    messages = body.get("messages") or []
    content = messages[-1].get("content") if messages and isinstance(messages[-1], dict) else None
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def last_message_text(body: Mapping[str, Any]) -> str:
    """Return the text of the last message, without its pictures."""
    return "".join(str(part.get("text") or "") for part in _last_message_parts(body) if isinstance(part, dict))


def picture_url(body: Mapping[str, Any]) -> str:
    """Return the URL of the first picture in the last message, or an empty string."""
    urls = [part.get("image_url") for part in _last_message_parts(body) if isinstance(part, dict)]
    return next((str(url.get("url") or "") for url in urls if isinstance(url, dict)), "")


def picture_colour(url: str) -> str:
    """Return the answer that names a picture's colour, which is that of the first pixel in a PNG data URL."""
    try:
        png = base64.b64decode(url.partition(",")[2], validate=True)
        red, green, blue = zlib.decompressobj().decompress(png[PIXEL_OFFSET:], 4)[1:]
    except (ValueError, zlib.error):
        return "Nothing."
    return "Red." if red > max(green, blue) else "Green." if green > blue else "Blue."


def known_answer(body: Mapping[str, Any]) -> str:
    """Return the correct answer to a sum or a question in KNOWN_ANSWERS, or an empty string."""
    question = last_message_text(body)
    if match := SUM_QUESTION_PATTERN.search(question):
        left, right = int(match[1]), int(match[3])
        return str(left + right if match[2] == "+" else left * right)
    answers = ((re.search(pattern, question), answer) for pattern, answer in KNOWN_ANSWERS)
    return next((answer.format(*match.groups()) for match, answer in answers if match), "")


def requested_call(body: Mapping[str, Any]) -> tuple[str, Any] | None:
    """Return the name and arguments of the tool call that a request calls for, or None if the answer is text.

    A tool is called if `tool_choice` requires it or the last message contains "call NAME". Offering tools is not enough,
    because agents offer them in every request.
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
    schema = next((tool.get("parameters") or {} for tool in tools if tool["name"] == name), {})
    arguments = example_value({"type": "object", **schema})  # arguments are an object, even without a schema
    city = CITY_NAME_PATTERN.search(text)
    if isinstance(arguments, dict) and "city" in arguments and city:
        arguments["city"] = city[1]
    return name, arguments


def call_deltas(calls: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the `tool_calls` deltas of a stream: for each call its name, then its arguments."""
    for index, call in enumerate(calls):
        function = call["function"]
        call_fields = {"index": index, "id": call["id"], "type": "function"}
        yield [{**call_fields, "function": {"name": function["name"], "arguments": ""}}]
        yield [{"index": index, "function": {"arguments": function["arguments"]}}]


def answer_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the JSON schema of the answer, or None if the request has none."""
    response_format = body.get("response_format") or {}
    if response_format.get("type") != "json_schema":
        return None
    return (response_format.get("json_schema") or {}).get("schema") or {}


@dataclass(frozen=True)
class AnswerSpec:
    """The answer that a request calls for."""

    #: pieces of the content; the default sentence if empty
    words: tuple[str, ...] = ()
    #: tool calls, returned in their own field
    calls: list[dict[str, Any]] = field(default_factory=list)
    #: all of the text is returned as thinking, and the content is null
    has_null_content: bool = False
    #: sent without the delay of a real engine
    is_immediate: bool = False
    #: name of the LoRA adapter that changes the default sentence; the base model if empty
    adapter: str = ""


def text_answer(text: str) -> AnswerSpec:
    """Return an answer with this text or, if it is empty, the default sentence with the delay of a real engine."""
    return AnswerSpec(split_pieces(text), is_immediate=bool(text))


def tool_call_answer(name: str, arguments: Any, **fields: Any) -> AnswerSpec:
    """Return an answer that is one tool call. `fields` are added to it: its id, and an index if the engine sends one."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return AnswerSpec(
        split_pieces("a b c d"), [{**fields, "type": "function", "function": function}], is_immediate=True
    )


def requested_answer(body: Mapping[str, Any], *, accepts_pictures: bool, parses_thinking: bool) -> AnswerSpec:
    """Return the answer that a chat request without a tool call calls for.

    Args:
        accepts_pictures: the model accepts pictures.
        parses_thinking: the server returns thinking in its own field.
    """
    if (schema := answer_schema(body)) is not None:
        return text_answer(json.dumps(example_value(schema)))
    if accepts_pictures and (picture := picture_url(body)):
        return text_answer(picture_colour(picture))
    if (body.get("chat_template_kwargs") or {}).get("enable_thinking") is True:
        return AnswerSpec(is_immediate=True) if parses_thinking else text_answer(UNPARSED_THINKING)
    question = last_message_text(body)
    # a question in another language is repeated as its own answer, so that the answer is in that language
    return text_answer(known_answer(body) or (question if _FOREIGN_TEXT_PATTERN.search(question) else ""))
