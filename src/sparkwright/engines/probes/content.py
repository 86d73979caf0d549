"""Probes of an answer's content: a vector's dimension, JSON that matches a schema, a language, and a picture's description."""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sparkwright.engines import tasks
from sparkwright.engines.openai_api import CHAT_PATH
from sparkwright.engines.probes.probe import Probe, ProbeResult, Reply, quote_text
from sparkwright.visible import format_count

CITIES = ("Paris", "Rome", "Oslo")
CITY_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": list(CITIES)}, "capital": {"type": "boolean"}},
    "required": ["city", "capital"],
    "additionalProperties": False,
}
#: enough for thinking, which gpt-oss cannot turn off, and about 20 tokens of JSON
JSON_SCHEMA_TOKENS = 512
MAX_JSON_CHARS = 1 << 14
LANGUAGE_TOKENS = 512
MAX_SEARCHED_CHARS = 1 << 14
#: minimum share of an answer's letters in the language's script
MIN_SCRIPT_SHARE = 0.5
ENGLISH = "en"
#: size of the picture; vision models refuse sizes below 28 or 56 pixels
IMAGE_PIXELS = 112
RED = b"\xff\x00\x00"
COLOUR_NAME_PATTERN = re.compile(r"\b(red|scarlet|crimson|rot|rouge|rojo)\b|红|紅|赤", re.IGNORECASE)
IMAGE_TOKENS = 512
#: port 9 is that of the discard service, which usually does not run
UNREACHABLE_IMAGE_URL = "http://127.0.0.1:9/picture.png"


def evaluate_dimension(dimension: int, reply: Reply) -> ProbeResult:
    """Check that the answer is a vector of the expected dimension."""
    vector = tasks.PROOFS["embed"].evaluate(reply.body)
    if vector.problem:
        return ProbeResult("disproved", f"the response was 200 {vector.problem}", "another dimension")
    length = len(reply.body["data"][0]["embedding"])
    evidence = f"a vector of {format_count(length, 'number')}"
    if length != dimension:
        return ProbeResult("disproved", f"{evidence} instead of {dimension}", "another dimension")
    return ProbeResult("proved", evidence)


def build_dimension_probe(dimension: int) -> Probe:
    """Return the probe for an embedding model's dimension."""
    rule = partial(evaluate_dimension, dimension)
    return Probe(f"embedding of {dimension}", tasks.EMBEDDINGS_PATH, {"input": tasks.PROOF_TEXT}, rule, thinks=None)


def evaluate_json_schema(reply: Reply) -> ProbeResult:
    """Check that the content is JSON that matches the schema."""
    text = reply.content
    if _matches_schema(text):
        return ProbeResult("proved", "the content is JSON that matches the schema")
    if reply.is_truncated:
        evidence = f"the JSON was incomplete after {JSON_SCHEMA_TOKENS} tokens: {quote_text(text)}"
        return ProbeResult("inconclusive", evidence)
    if not text:
        return ProbeResult("disproved", "content is null instead of JSON", "content null")
    evidence = f"the content is not JSON that matches the schema: {quote_text(text)}"
    return ProbeResult("disproved", evidence, "not the schema")


def _matches_schema(text: str) -> bool:
    try:
        value: Any = json.loads(text) if len(text) <= MAX_JSON_CHARS else None
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(value, dict)
        and set(value) == {"city", "capital"}
        and value["city"] in CITIES
        and isinstance(value["capital"], bool)
    )


JSON_SCHEMA_PROBE = Probe(
    "json_schema",
    CHAT_PATH,
    {
        "messages": [
            {"role": "user", "content": "Name a city of Norway, and say whether it is the capital. Answer in JSON."}
        ],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "place", "strict": True, "schema": CITY_SCHEMA},
        },
        "max_tokens": JSON_SCHEMA_TOKENS,
    },
    evaluate_json_schema,
    refusal_fault="not the schema",
)


@dataclass(frozen=True, slots=True)
class Language:
    """A question in a language, and how to recognize an answer in it."""

    prompt: str
    #: common words of the language
    words: frozenset[str] = field(default_factory=frozenset)
    #: character ranges of its script; empty for Latin
    script: str = ""


def _latin_language(prompt: str, words: str) -> Language:
    return Language(prompt, frozenset(words.split()))


LANGUAGES: Mapping[str, Language] = {
    "en": _latin_language(
        "How many days does a week have, and which is the first? Answer in whole sentences.", "the is and has are of"
    ),
    "de": _latin_language(
        "Wie viele Tage hat eine Woche, und welcher ist der erste? Antworte in ganzen Sätzen.",
        "der die das und ist hat sind eine einer von ein",
    ),
    "fr": _latin_language(
        "Combien de jours compte une semaine, et quel est le premier ? Réponds par des phrases entières.",
        "le est et une compte jours semaine sont premier il",
    ),
    "es": _latin_language(
        "¿Cuántos días tiene una semana y cuál es el primero? Responde con frases completas.",
        "el es y una tiene días semana los primero son",
    ),
    "it": _latin_language(
        "Quanti giorni ha una settimana e qual è il primo? Rispondi con frasi intere.",
        "il è e una ha giorni settimana sono primo giorno",
    ),
    "pt": _latin_language(
        "Quantos dias tem uma semana e qual é o primeiro? Responde com frases completas.",
        "o é e uma tem dias semana são primeiro os",
    ),
    "nl": _latin_language(
        "Hoeveel dagen heeft een week, en welke is de eerste? Antwoord in hele zinnen.",
        "de het een heeft en dagen eerste zijn",
    ),
    "pl": _latin_language(
        "Ile dni ma tydzień i który jest pierwszy? Odpowiedz pełnymi zdaniami.",
        "ma dni tydzień i jest pierwszy pierwszym to się",
    ),
    "ru": Language("Сколько дней в неделе и какой из них первый? Ответь полными предложениями.", script="Ѐ-ӿ"),
    "zh": Language("一周有几天？第一天是星期几？请用完整的句子回答。", script="一-鿿"),
    "ja": Language("一週間は何日ありますか。最初の日は何曜日ですか。文で答えてください。", script="぀-ヿ一-鿿"),
    "ko": Language("일주일은 며칠이고 첫째 날은 무슨 요일입니까? 완전한 문장으로 답하세요.", script="가-힣"),
}


def evaluate_language(name: str, reply: Reply) -> ProbeResult:
    """Check that the answer is in the language of the question."""
    text = reply.content[:MAX_SEARCHED_CHARS]
    if not text.strip():
        if reply.is_truncated:
            return ProbeResult("inconclusive", f"no answer within {LANGUAGE_TOKENS} tokens")
        return ProbeResult("disproved", "content is null", "content null")
    if is_in_language(name, text):
        return ProbeResult("proved", f"answered in the language of the question: {quote_text(text)}")
    return ProbeResult("disproved", f"a question in '{name}' was answered with {quote_text(text)}", "another language")


def is_in_language(name: str, text: str) -> bool:
    """Return True if a text has enough letters of the language's script, or enough of its words and fewer English ones."""
    language = LANGUAGES[name]
    if language.script:
        letters = [character for character in text if character.isalpha()]
        script_letters = re.findall(f"[{language.script}]", text)
        return bool(letters) and len(script_letters) >= MIN_SCRIPT_SHARE * len(letters)
    words = re.findall(r"\w+", text.lower())
    common_words = sum(word in language.words for word in words)
    english_words = sum(word in LANGUAGES[ENGLISH].words for word in words)
    return common_words >= 2 and (name == ENGLISH or common_words > english_words)


def build_language_probe(name: str) -> Probe:
    """Return the probe for a language, a key of LANGUAGES."""
    messages = [{"role": "user", "content": LANGUAGES[name].prompt}]
    body = {"messages": messages, "max_tokens": LANGUAGE_TOKENS}
    return Probe(f"language {name}", CHAT_PATH, body, partial(evaluate_language, name))


def build_png(pixels: int, colour: bytes) -> bytes:
    """Return a PNG square of one colour. colour: three bytes."""
    rows = (b"\x00" + colour * pixels) * pixels
    header = struct.pack(">IIBBBBB", pixels, pixels, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_png_chunk, *zip(*chunks, strict=True)))


def _png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def evaluate_image(reply: Reply) -> ProbeResult:
    """Check that the answer names the picture's colour."""
    text = reply.content
    if COLOUR_NAME_PATTERN.search(text[:MAX_SEARCHED_CHARS]):
        return ProbeResult("proved", f"described the red picture: {quote_text(text)}")
    if reply.is_truncated:
        return ProbeResult("inconclusive", f"the answer was incomplete after {IMAGE_TOKENS} tokens")
    if not text:
        return ProbeResult("disproved", "content is null", "content null")
    return ProbeResult("disproved", f"described a red picture as {quote_text(text)}", "picture not seen")


IMAGE_URL = "data:image/png;base64," + base64.b64encode(build_png(IMAGE_PIXELS, RED)).decode()
IMAGE_PROBE = Probe(
    "image",
    CHAT_PATH,
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What colour is this picture? Answer with one word."},
                    {"type": "image_url", "image_url": {"url": IMAGE_URL}},
                ],
            }
        ],
        "max_tokens": IMAGE_TOKENS,
    },
    evaluate_image,
    refusal_fault="picture refused",
)
IMAGE_VARIANTS = (
    IMAGE_PROBE.as_stream(),
    replace(
        IMAGE_PROBE,
        name="image, out of reach",
        body={
            **IMAGE_PROBE.body,
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": UNREACHABLE_IMAGE_URL}}]}
            ],
        },
        rule=lambda reply: ProbeResult("proved", f"answered without the picture: {quote_text(reply.content)}"),
        variant=True,
        optional=True,
        server_error_note="a picture that cannot be fetched causes a server error (5xx): clients should not retry it",
    ),
)
