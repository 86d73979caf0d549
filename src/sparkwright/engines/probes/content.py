"""Probes of an answer's content: the length of a vector, JSON of a schema, a language, and a picture."""

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
from sparkwright.engines.openai_api import CHAT
from sparkwright.engines.probes.probe import Probe, Reply, Seen, quoted
from sparkwright.visible import count


def judge_dimension(wanted: int, reply: Reply) -> Seen:
    """Judge if the vector has the wanted dimension."""
    judged = tasks.PROOFS["embed"].judge(reply.body)
    if judged.why_not:
        return Seen("disproved", f"the response was 200 {judged.why_not}", "another dimension")
    length = len(reply.body["data"][0]["embedding"])
    if length != wanted:
        return Seen("disproved", f"a vector of {count(length, 'number')} instead of {wanted}", "another dimension")
    return Seen("proved", f"a vector of {count(length, 'number')}")


def probe_dimension(wanted: int) -> Probe:
    """Return the probe of a vector length."""
    body = {"input": tasks.TEXT}
    return Probe(f"embedding of {wanted}", tasks.EMBEDDINGS, body, partial(judge_dimension, wanted), thinks=None)


CITIES = ("Paris", "Rome", "Oslo")
JSON_SCHEMA_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": list(CITIES)}, "capital": {"type": "boolean"}},
    "required": ["city", "capital"],
    "additionalProperties": False,
}
#: the JSON is 20 tokens or so; gpt-oss always thinks before it
JSON_SCHEMA_TOKENS = 512
LONGEST_CHARS = 1 << 14


def judge_json_schema(reply: Reply) -> Seen:
    """Judge if the content is JSON of the schema."""
    text = reply.content
    if reply.cut and not _holds(text):
        return Seen("inconclusive", f"the JSON had not ended within {JSON_SCHEMA_TOKENS} tokens: {quoted(text)}")
    if not text:
        return Seen("disproved", "content is null instead of JSON", "content null")
    if not _holds(text):
        return Seen("disproved", f"the content is not JSON that matches the schema: {quoted(text)}", "not the schema")
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


JSON_SCHEMA_PROBE = Probe(
    "json_schema",
    CHAT,
    {
        "messages": [
            {"role": "user", "content": "Name a city of Norway, and say whether it is the capital. Answer in JSON."}
        ],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "place", "strict": True, "schema": JSON_SCHEMA_SCHEMA},
        },
        "max_tokens": JSON_SCHEMA_TOKENS,
    },
    judge_json_schema,
    refused="not the schema",
)


LANGUAGE_TOKENS = 512
SEARCHED_CHARS = 1 << 14
#: least share of an answer's letters in the language's own script
SHARE = 0.5
ENGLISH = "en"


@dataclass(frozen=True, slots=True)
class Language:
    """A language, with a question in it and marks of an answer in it."""

    #: the question
    prompt: str
    #: the most common words, none of them common in the other languages
    words: frozenset[str] = field(default_factory=frozenset)
    #: ranges of its letters; empty for Latin
    script: str = ""


def _latin(prompt: str, words: str) -> Language:
    return Language(prompt, frozenset(words.split()))


LANGUAGES: Mapping[str, Language] = {
    "en": _latin(
        "How many days does a week have, and which is the first? Answer in whole sentences.", "the is and has are of"
    ),
    "de": _latin(
        "Wie viele Tage hat eine Woche, und welcher ist der erste? Antworte in ganzen Sätzen.",
        "der die das und ist hat sind eine einer von ein",
    ),
    "fr": _latin(
        "Combien de jours compte une semaine, et quel est le premier ? Réponds par des phrases entières.",
        "le est et une compte jours semaine sont premier il",
    ),
    "es": _latin(
        "¿Cuántos días tiene una semana y cuál es el primero? Responde con frases completas.",
        "el es y una tiene días semana los primero son",
    ),
    "it": _latin(
        "Quanti giorni ha una settimana e qual è il primo? Rispondi con frasi intere.",
        "il è e una ha giorni settimana sono primo giorno",
    ),
    "pt": _latin(
        "Quantos dias tem uma semana e qual é o primeiro? Responde com frases completas.",
        "o é e uma tem dias semana são primeiro os",
    ),
    "nl": _latin(
        "Hoeveel dagen heeft een week, en welke is de eerste? Antwoord in hele zinnen.",
        "de het een heeft en dagen eerste zijn",
    ),
    "pl": _latin(
        "Ile dni ma tydzień i który jest pierwszy? Odpowiedz pełnymi zdaniami.",
        "ma dni tydzień i jest pierwszy pierwszym to się",
    ),
    "ru": Language("Сколько дней в неделе и какой из них первый? Ответь полными предложениями.", script="Ѐ-ӿ"),
    "zh": Language("一周有几天？第一天是星期几？请用完整的句子回答。", script="一-鿿"),
    "ja": Language("一週間は何日ありますか。最初の日は何曜日ですか。文で答えてください。", script="぀-ヿ一-鿿"),
    "ko": Language("일주일은 며칠이고 첫째 날은 무슨 요일입니까? 완전한 문장으로 답하세요.", script="가-힣"),
}


def judge_language(name: str, reply: Reply) -> Seen:
    """Judge if the answer is in this language."""
    text = reply.content[:SEARCHED_CHARS]
    if not text.strip():
        if reply.cut:
            return Seen("inconclusive", f"no answer within {LANGUAGE_TOKENS} tokens")
        return Seen("disproved", "content is null", "content null")
    if speaks(name, text):
        return Seen("proved", f"answered in the language of the question: {quoted(text)}")
    return Seen("disproved", f"asked in '{name}' it answered {quoted(text)}", "another language")


def speaks(name: str, text: str) -> bool:
    """Return True if a text is in this language: two of its common words and more than of English, or half of its letters."""
    language = LANGUAGES[name]
    if language.script:
        letters = [item for item in text if item.isalpha()]
        own = re.findall(f"[{language.script}]", text)
        return bool(letters) and len(own) >= SHARE * len(letters)
    found = re.findall(r"\w+", text.lower())
    own_words = sum(word in language.words for word in found)
    english = sum(word in LANGUAGES[ENGLISH].words for word in found)
    return own_words >= 2 and (name == ENGLISH or own_words > english)


def probe_language(name: str) -> Probe:
    """Return the probe of one language."""
    messages = [{"role": "user", "content": LANGUAGES[name].prompt}]
    return Probe(
        f"language {name}", CHAT, {"messages": messages, "max_tokens": LANGUAGE_TOKENS}, partial(judge_language, name)
    )


#: vision models refuse pictures below 28 or 56 pixels
PIXELS = 112
RED = b"\xff\x00\x00"
NAMES = re.compile(r"\b(red|scarlet|crimson|rot|rouge|rojo)\b|红|紅|赤", re.IGNORECASE)
IMAGE_TOKENS = 512


def png(pixels: int, colour: bytes) -> bytes:
    """Return a PNG square of one colour. colour: three bytes."""
    rows = (b"\x00" + colour * pixels) * pixels
    header = struct.pack(">IIBBBBB", pixels, pixels, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, *zip(*chunks, strict=True)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def judge_image(reply: Reply) -> Seen:
    """Judge if the answer names the colour."""
    text = reply.content
    if NAMES.search(text[:SEARCHED_CHARS]):
        return Seen("proved", f"saw the red picture: {quoted(text)}")
    if reply.cut:
        return Seen("inconclusive", f"the answer had not ended within {IMAGE_TOKENS} tokens")
    if not text:
        return Seen("disproved", "content is null", "content null")
    return Seen("disproved", f"of a red picture it said {quoted(text)}", "picture not seen")


URL = "data:image/png;base64," + base64.b64encode(png(PIXELS, RED)).decode()
IMAGE_PROBE = Probe(
    "image",
    CHAT,
    {
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What colour is this picture? Answer with one word."},
                    {"type": "image_url", "image_url": {"url": URL}},
                ],
            }
        ],
        "max_tokens": IMAGE_TOKENS,
    },
    judge_image,
    refused="picture refused",
)
#: no server listens there: port 9 is the discard service
OUT_OF_REACH = "http://127.0.0.1:9/picture.png"
IMAGE_VARIANTS = (
    IMAGE_PROBE.in_a_stream(),
    replace(
        IMAGE_PROBE,
        name="image, out of reach",
        body={
            **IMAGE_PROBE.body,
            "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": OUT_OF_REACH}}]}],
        },
        rule=lambda reply: Seen("proved", f"answered all the same: {quoted(reply.content)}"),
        variant=True,
        optional=True,
        of_server_error="a picture that cannot be fetched is answered as a fault of the server: repeating such a request is useless",
    ),
)
