"""Checks of a server's first answers: questions with one right answer, and texts that no working model writes.

A reference text is compared with an earlier one. These questions are asked before there is anything to compare with, so that a
broken kernel, damaged weights or another model's template never become the reference (seen on a GB10: `'s't's't` for every
prompt, with status 200 and at full speed; NVIDIA/dgx-spark-playbooks 76).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sparkwright.engines import openai_api
from sparkwright.engines.http import Http
from sparkwright.measure import http_probe
from sparkwright.measure.reference import Unanswered
from sparkwright.visible import count, one_line

Verdict = Literal["sane", "doubtful", "garbage"]

#: an answer is a word or a number; a model that always thinks needs the rest
TOKENS = 160
SHOWN_CHARS = 60
SEARCHED_CHARS = 1 << 14


@dataclass(frozen=True, slots=True)
class Question:
    """A question with one right answer."""

    prompt: str
    answer: str  # pattern that matches only the right answer


def _needle() -> str:
    """Return a prompt with one fact in the middle of some 2,000 tokens of others."""
    items = [f"Item {n}: {n} times {n} is {n * n}." for n in range(1, 121)]
    items.insert(70, "The password of the lighthouse is marigold.")
    return "\n".join((*items, "What is the password of the lighthouse? Answer with one word."))


NEEDLE = Question(_needle(), r"\bmarigold\b")
#: each answer differs from the others, so that one answer to all of them is at most once right
QUESTIONS: tuple[Question, ...] = (
    Question("What is 17 + 25? Answer with the number only.", r"\b42\b"),
    Question("What is 9 times 6? Answer with the number only.", r"\b54\b"),
    Question("What is the capital of France? Answer with one word.", r"\bParis\b"),
    Question("What is the capital of Japan? Answer with one word.", r"\bTokyo\b|東京|东京"),
    Question("Which number comes next: 3, 6, 9, 12? Answer with the number only.", r"\b15\b"),
    Question("Which day comes after Monday? Answer with one word.", r"\bTuesday\b"),
    Question("How many legs does a spider have? Answer with the number only.", r"\b(?:8|eight)\b"),
    Question("What is the opposite of hot? Answer with one word.", r"\b(?:cold|cool)\b"),
    Question("Repeat this word exactly: quixotry", r"\bquixotry\b"),
    Question("Write the word 'lamp' in capital letters.", r"\b(?-i:LAMP)\b"),
    Question("Count from 1 to 5.", r"1\D{1,9}2\D{1,9}3\D{1,9}4\D{1,9}5"),
    NEEDLE,
)
#: right answers. A model with random weights, or one whose kernels are broken, gets none (vLLM 0.32.0 and llama-server b11549 on
#: a CPU). A small one that works gets most: Qwen3-0.6B's published GSM8K is 59.6, in several steps each; these take one.
SANE, GARBAGE = 7, 1

#: marks of a tokenizer or a template that are never part of an answer
CONTROL = re.compile(r"<\|[\w ]{1,40}\|>|</?s>|<(?:pad|unk|bos|eos|mask)>|\[(?:PAD|UNK|MASK|CLS|SEP)\]|\ufffd{2,}")
#: pieces of a text: words, and runs of other characters
PIECES = re.compile(r"\w+|[^\w\s]+")
#: pieces, or characters without spaces, of a text that is checked for loops, and the distinct ones below which it is a loop
LONG_PIECES, DIFFERENT_SHARE = 12, 0.25
LONG_SIGNS, DIFFERENT_SIGNS = 24, 4


@dataclass(frozen=True, slots=True)
class Judged:
    """The judgement of a server's first answers."""

    verdict: Verdict
    sentence: str
    right: int = 0
    evidence: tuple[str, ...] = ()


def nonsense(text: str) -> str:
    """Return the reason that no working model writes such a text, as half a sentence, or an empty string."""
    text = text[:SEARCHED_CHARS]
    pieces, signs = PIECES.findall(text), re.sub(r"\s", "", text)
    if not signs:
        return "the content is empty"
    if control := CONTROL.search(text):
        return f"the content holds the control token {control[0]!r}"
    if len(pieces) >= LONG_PIECES and len(set(pieces)) < DIFFERENT_SHARE * len(pieces):
        return f"it repeats {count(len(set(pieces)), 'word')} without end"
    if len(signs) >= LONG_SIGNS and len(set(signs)) <= DIFFERENT_SIGNS:
        return f"it repeats {count(len(set(signs)), 'sign')} without end"
    return ""


def judge(answers: Sequence[str], texts: Sequence[str] = ()) -> Judged:
    """Judge a server's first answers. Pure.

    Args:
        answers: to QUESTIONS, in their order.
        texts: answers to different other prompts for which no right answer is known.
    """
    pairs = list(zip(QUESTIONS, answers, strict=True))
    wrong = [
        (question, text) for question, text in pairs if not re.search(question.answer, text[:SEARCHED_CHARS], re.I)
    ]
    right = len(pairs) - len(wrong)
    reasons = Counter(reason for text in (*answers, *texts) if (reason := nonsense(text)))
    broken = sum(reasons.values()) > (len(answers) + len(texts)) / 2 or (texts and all(map(nonsense, texts)))
    evidence = tuple(
        f"{one_line(question.prompt[-SHOWN_CHARS:])!r}: {one_line(text.strip(), at_most=SHOWN_CHARS)!r}"
        for question, text in wrong
    )
    score = f"{right} of {len(pairs)} simple questions right"
    if right <= GARBAGE or broken:
        same = len({text.strip() for text in answers}) == 1
        why = "one answer to all of them" if same else next(iter(reasons), "")
        return Judged("garbage", f"it answers garbage: {score}{f'; {why}' if why else ''}", right, evidence)
    if right < SANE or reasons:
        why = f"; {next(iter(reasons))}" if reasons else ""
        return Judged("doubtful", f"its first answers are doubtful: {score}{why}", right, evidence)
    return Judged("sane", score, right, evidence)


def from_cache(judged: Judged, new: str, cached: str) -> Judged:
    """Return the judgement after the longest question was asked again, with its prompt in the prefix cache."""
    right = [bool(re.search(NEEDLE.answer, text[:SEARCHED_CHARS], re.I)) for text in (new, cached)]
    if judged.verdict != "sane" or right[0] == right[1]:
        return judged
    first, second = ("right", "wrong") if right[0] else ("wrong", "right")
    sentence = f"the same prompt was answered {first} when it was new and {second} from the prefix cache"
    return Judged(
        "doubtful", sentence, judged.right, (f"new: {new[:SHOWN_CHARS]!r}", f"cached: {cached[:SHOWN_CHARS]!r}")
    )


def ask(
    http: Http, base_url: str, model: str, question: str, *, api_key: str, timeout_s: float, temperature: float = 0.0
) -> str:
    """Return the answer to a question, decoded greedily by default, and without thinking if that can be turned off.

    If a model thinks anyway and does not reach an answer, its thinking is judged.

    Raises:
        reference.Unanswered: if there is no answer, with the server's own message.
    """
    body = {**openai_api.generated(http, model, question, TOKENS), "temperature": temperature}
    reply = http_probe.ask_plainly(http, base_url, body, api_key=api_key, timeout_s=timeout_s)
    if reply.status in openai_api.REFUSALS and question == NEEDLE.prompt:
        return NEEDLE_LEFT_OUT
    if reply.status != 200 or reply.failure:
        slow = reply.error == "timeout"
        raise Unanswered(f"no answer within {timeout_s:g} s" if slow else reply.message(), slow=slow)
    content, thinking = openai_api.spoken(reply.json())
    return content or thinking


#: answer in place of a refused longest question: a context that is too short for it proves nothing against a model
NEEDLE_LEFT_OUT = "marigold"
