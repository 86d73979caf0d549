"""The probe of the answer's language, recognised by its most common words, or by its script."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from sparkwright.engines.openai_api import CHAT
from sparkwright.engines.probes.probe import Probe, Reply, Seen, quoted

TOKENS = 512
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


def judge(name: str, reply: Reply) -> Seen:
    """Judge if the answer is in this language."""
    text = reply.content[:SEARCHED_CHARS]
    if not text.strip():
        if reply.cut:
            return Seen("inconclusive", f"no answer within {TOKENS} tokens")
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


def probe(name: str) -> Probe:
    """Return the probe of one language."""
    messages = [{"role": "user", "content": LANGUAGES[name].prompt}]
    return Probe(f"language {name}", CHAT, {"messages": messages, "max_tokens": TOKENS}, partial(judge, name))
