"""Checking that a server runs the expected model: compares its greedy texts with earlier ones, and checks its first answers.

Greedy decoding is repeatable except at near-ties, where a batch, a cache or a kernel may round differently so that the second
best token wins. Therefore the first difference between two texts is evaluated by the distance of the two tokens in both runs' log
probabilities (docs/decisions/0015).

QUESTIONS have one right answer each. They are sent before there are earlier texts, so that the texts of a broken kernel, damaged
weights or another model's template never become the reference (on a GB10, `'s't's't` was returned for every prompt, with status
200 and at full speed; NVIDIA/dgx-spark-playbooks 76).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.engines import openai_api
from sparkwright.engines.http import Http
from sparkwright.measure import http_probe
from sparkwright.trust.bounds import parse_number
from sparkwright.visible import format_count, one_line

Verdict = Literal["same", "doubtful", "another"]
AnswersVerdict = Literal["sane", "doubtful", "garbage"]

#: prompts whose answers differ between models, are longer than MAX_TOKENS and do not depend on the date. Changing them requires a
#: new PROMPT_SET.
PROMPTS: tuple[str, ...] = (
    "Explain in three sentences why the sky is blue.",
    "List the planets of the solar system from the sun outwards, with one sentence about each.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
)
PROMPT_SET = 1
#: additional prompt of some 2,000 tokens for clusters, because a member with a shorter context answers only short ones
LONG_PROMPT = "\n".join(
    (*(f"Item {n}: {n} times {n} is {n * n}." for n in range(1, 121)), "What do these lines have in common?")
)
LONG_PROMPT_NAME = "a long prompt"
MAX_TOKENS = 32
TOP_LOGPROBS = 5
#: distance below which two tokens are a near-tie if both runs agree: two steps of a bfloat16 logit between 16 and 32
NEAR_TIE_NATS = 0.25
#: length of a text's beginning in which rounding hardly ever makes a difference, and never in all texts: in tokens, or as a share
#: of the text if there are no log probabilities
EARLY_TOKENS, EARLY_SHARE = 8, 0.25
CONTEXT_CHARS = 24
#: limit on the absolute log probability; servers return -9999 for an impossible token
MAX_ABS_LOGPROB = 1e4

#: token limit of an answer; a word or a number is enough, but some models always think first
MAX_ANSWER_TOKENS = 160
MAX_SHOWN_CHARS = 60
MAX_SEARCHED_CHARS = 1 << 14

#: minimum number of right answers of a sane model, and maximum of one that returns garbage. A model with random weights or broken
#: kernels gets none right (vLLM 0.32.0 and llama-server b11549 on a CPU), a small working model most: Qwen3-0.6B's published
#: GSM8K is 59.6, with questions of several steps each, while these take one.
MIN_SANE_ANSWERS, MAX_GARBAGE_ANSWERS = 7, 1

#: control tokens of tokenizers and templates, which are never part of an answer
CONTROL_TOKEN = re.compile(
    r"<\|[\w ]{1,40}\|>|</?s>|<(?:pad|unk|bos|eos|mask)>|\[(?:PAD|UNK|MASK|CLS|SEP)\]|\ufffd{2,}"
)
#: pieces of a text, which are words and runs of other characters
PIECE = re.compile(r"\w+|[^\w\s]+")
#: a text with at least this many pieces is a loop if the share of distinct ones is lower
MIN_LOOP_PIECES, MIN_DISTINCT_SHARE = 12, 0.25
#: a text with at least this many characters, without spaces, is a loop if it has no more distinct ones
MIN_LOOP_CHARS, MAX_LOOP_DISTINCT_CHARS = 24, 4

#: the fact to find in the prompt of NEEDLE_QUESTION
NEEDLE_ANSWER = "marigold"

#: a token and its log probability
Candidate = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Question:
    """A question with one right answer."""

    prompt: str
    #: pattern that matches only the right answer
    answer: str

    def is_answered_by(self, text: str) -> bool:
        return bool(re.search(self.answer, text[:MAX_SEARCHED_CHARS], re.IGNORECASE))


def _build_needle_prompt() -> str:
    """Return a prompt of some 2,000 tokens with the fact to find in the middle."""
    items = [f"Item {n}: {n} times {n} is {n * n}." for n in range(1, 121)]
    items.insert(70, f"The password of the lighthouse is {NEEDLE_ANSWER}.")
    return "\n".join((*items, "What is the password of the lighthouse? Answer with one word."))


NEEDLE_QUESTION = Question(_build_needle_prompt(), rf"\b{NEEDLE_ANSWER}\b")
#: questions with different answers, so that a server that always answers the same is right at most once
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
    NEEDLE_QUESTION,
)


class Unanswered(Exception):
    """A prompt was not answered.

    Args:
        message: the error.
        slow: True if the request timed out, which other requests may have caused.
    """

    def __init__(self, message: str, *, slow: bool = False) -> None:
        super().__init__(message)
        self.slow = slow


@dataclass(frozen=True, slots=True)
class GeneratedText:
    """A generated text with its log probabilities."""

    text: str
    #: likeliest tokens at each step, beginning with the one that greedy decoding chooses; empty if there are no log probabilities
    steps: tuple[tuple[Candidate, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "steps": [[list(candidate) for candidate in step] for step in self.steps]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GeneratedText:
        steps = tuple(tuple((token, logprob) for token, logprob in step) for step in data["steps"])
        return cls(data["text"], steps)


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two texts of a prompt."""

    prompt: str
    before: str
    now: str
    #: index of the first differing character
    char: int
    #: number of the first differing token, starting with 1; 0 if unknown
    token: int = 0
    #: distance of the two tokens in nats, in the run where it is larger; None if unknown
    gap: float | None = None
    #: True if the difference is at a near-tie
    tied: bool = False

    @property
    def sentence(self) -> str:
        position = f"token {self.token}" if self.token else f"character {self.char + 1}"
        distance = (
            ""
            if self.gap is None
            else f", {self.gap:.2f} nats apart"
            if self.gap < NEAR_TIE_NATS
            else ", not a near-tie"
        )
        return (
            f"{self.prompt!r} differs at {position}{distance}: {_excerpt(self.before, self.char)} is now "
            f"{_excerpt(self.now, self.char)}"
        )


def query_texts(
    http: Http, base_url: str, model: str, *, api_key: str, timeout_s: float, with_long_prompt: bool = False
) -> list[GeneratedText]:
    """Send the prompts one after the other and return their texts. Raises Unanswered.

    Args:
        http: the engine's HTTP API.
        base_url: URL of the server.
        model: served name.
        api_key: key of the server.
        timeout_s: time limit for each request.
        with_long_prompt: also send LONG_PROMPT, whose text is left out if the server refuses it as too long.
    """
    texts = []
    for prompt in (*PROMPTS, *((LONG_PROMPT,) if with_long_prompt else ())):
        body = openai_api.build_reference_request(http, model, prompt, MAX_TOKENS, TOP_LOGPROBS)
        response = http_probe.send_with_fewer_options(http, base_url, body, api_key=api_key, timeout_s=timeout_s)
        if prompt is LONG_PROMPT and response.status in openai_api.REFUSAL_STATUSES:
            break
        texts.append(_parse_text(response, timeout_s))
    return texts


def _parse_text(response: http_probe.Response, timeout_s: float) -> GeneratedText:
    """Return the text of a response. Raises Unanswered."""
    if response.error == "timeout":
        raise Unanswered(f"no text within {timeout_s:g} s", slow=True)
    if response.status != 200 or response.failure:
        raise Unanswered(f"{response.status or ''} {response.message()}".strip())
    document = response.json()
    content, thinking = openai_api.parse_answer(document)
    return GeneratedText(content or thinking, _parse_steps(openai_api.parse_logprobs(document)))


def _parse_steps(rows: Sequence[Sequence[tuple[str, Any]]]) -> tuple[tuple[Candidate, ...], ...]:
    """Return the candidates of each step, likeliest first; empty if a step has no valid log probability."""
    steps = []
    for row in rows[:MAX_TOKENS]:
        parsed = [(token, parse_number(str(logprob), maximum=MAX_ABS_LOGPROB)) for token, logprob in row]
        candidates = [(token, logprob) for token, logprob in parsed if logprob is not None]
        if not candidates:
            return ()
        steps.append(tuple(sorted(candidates, key=lambda candidate: -candidate[1])[:TOP_LOGPROBS]))
    return tuple(steps)


def compare_texts(
    earlier_texts: Sequence[GeneratedText], current_texts: Sequence[GeneratedText]
) -> tuple[Verdict, list[Divergence]]:
    """Compare the texts for all prompts. Return the verdict and the first difference of each pair that differs.

    The verdict is "another" model if all texts differ, each within its first tokens or away from a near-tie. It is "doubtful" if
    a text differs away from a near-tie, or if all texts differ, which rounding alone hardly causes.
    """
    texts_by_prompt = list(zip((*PROMPTS, LONG_PROMPT_NAME), earlier_texts, current_texts, strict=False))
    comparisons = [find_divergence(prompt, old, new) for prompt, old, new in texts_by_prompt]
    divergences = [divergence for divergence in comparisons if divergence is not None]
    all_differ = len(divergences) == len(comparisons) > 0
    if all_differ and all(map(_is_significant, divergences)):
        return "another", divergences
    return ("doubtful" if all_differ or not all(item.tied for item in divergences) else "same"), divergences


def _is_significant(divergence: Divergence) -> bool:
    """Return True if rounding is unlikely to cause this difference."""
    if divergence.gap is None:
        return divergence.char < EARLY_SHARE * len(divergence.before)
    return not divergence.tied or divergence.token <= EARLY_TOKENS


def find_divergence(prompt: str, earlier_text: GeneratedText, current_text: GeneratedText) -> Divergence | None:
    """Return the first difference between two texts for a prompt, or None if they are equal."""
    char_index = next(
        (n for n, (a, b) in enumerate(zip(earlier_text.text, current_text.text, strict=False)) if a != b), None
    )
    if char_index is None and len(earlier_text.text) == len(current_text.text):
        return None
    char_index = min(len(earlier_text.text), len(current_text.text)) if char_index is None else char_index
    if not earlier_text.steps or not current_text.steps:
        return Divergence(prompt, earlier_text.text, current_text.text, char_index)
    for n, (old, new) in enumerate(zip(earlier_text.steps, current_text.steps, strict=False), 1):
        if old[0][0] != new[0][0]:
            gap = max(_logprob_gap(old, new[0][0]), _logprob_gap(new, old[0][0]))
            return Divergence(prompt, earlier_text.text, current_text.text, char_index, n, gap, gap < NEAR_TIE_NATS)
    shorter_length = min(len(earlier_text.steps), len(current_text.steps))  # one text is the beginning of the other
    return Divergence(prompt, earlier_text.text, current_text.text, char_index, shorter_length + 1, float("inf"))


def _logprob_gap(step: Sequence[Candidate], token: str) -> float:
    """Return how far a token is below the generated one in nats; infinite if it is not among the candidates."""
    return next((step[0][1] - logprob for candidate, logprob in step if candidate == token), float("inf"))


def _excerpt(text: str, char: int) -> str:
    start = max(0, char - CONTEXT_CHARS)
    return repr(("…" if start else "") + text[start : char + CONTEXT_CHARS])


@dataclass(frozen=True, slots=True)
class AnswersEvaluation:
    """The evaluation of a server's first answers."""

    verdict: AnswersVerdict
    sentence: str
    right: int = 0
    evidence: tuple[str, ...] = ()


def describe_nonsense(text: str) -> str:
    """Describe why a text can't be that of a working model, as a clause; empty if it can."""
    text = text[:MAX_SEARCHED_CHARS]
    pieces, chars = PIECE.findall(text), re.sub(r"\s", "", text)
    if not chars:
        return "the content is empty"
    if control := CONTROL_TOKEN.search(text):
        return f"the content contains the control token {control[0]!r}"
    if len(pieces) >= MIN_LOOP_PIECES and len(set(pieces)) < MIN_DISTINCT_SHARE * len(pieces):
        return f"it repeats {format_count(len(set(pieces)), 'word')} endlessly"
    if len(chars) >= MIN_LOOP_CHARS and len(set(chars)) <= MAX_LOOP_DISTINCT_CHARS:
        return f"it repeats {format_count(len(set(chars)), 'character')} endlessly"
    return ""


def evaluate_answers(answers: Sequence[str], texts: Sequence[str] = ()) -> AnswersEvaluation:
    """Evaluate a server's first answers.

    Args:
        answers: answers to QUESTIONS, in order.
        texts: answers to prompts that have no single right answer.
    """
    wrong_answers = [
        (question, text) for question, text in zip(QUESTIONS, answers, strict=True) if not question.is_answered_by(text)
    ]
    right_count = len(QUESTIONS) - len(wrong_answers)
    reasons = Counter(reason for text in (*answers, *texts) if (reason := describe_nonsense(text)))
    is_broken = sum(reasons.values()) > (len(answers) + len(texts)) / 2 or (
        texts and all(map(describe_nonsense, texts))
    )
    evidence = tuple(
        f"{one_line(question.prompt[-MAX_SHOWN_CHARS:])!r}: {one_line(text.strip(), max_chars=MAX_SHOWN_CHARS)!r}"
        for question, text in wrong_answers
    )
    score = f"{right_count} of {len(QUESTIONS)} simple questions right"
    if right_count <= MAX_GARBAGE_ANSWERS or is_broken:
        all_are_same = len({text.strip() for text in answers}) == 1
        detail = "the same answer to all" if all_are_same else next(iter(reasons), "")
        return AnswersEvaluation(
            "garbage", f"it answers garbage: {score}{f'; {detail}' if detail else ''}", right_count, evidence
        )
    if right_count < MIN_SANE_ANSWERS or reasons:
        detail = f"; {next(iter(reasons))}" if reasons else ""
        return AnswersEvaluation("doubtful", f"its first answers are doubtful: {score}{detail}", right_count, evidence)
    return AnswersEvaluation("sane", score, right_count, evidence)


def evaluate_cached_answer(evaluation: AnswersEvaluation, fresh_answer: str, cached_answer: str) -> AnswersEvaluation:
    """Return the evaluation after NEEDLE_QUESTION was repeated. It is doubtful if only one answer is right.

    Args:
        evaluation: result of `evaluate_answers`.
        fresh_answer: the first answer.
        cached_answer: the answer when the prompt was in the prefix cache.
    """
    is_right = NEEDLE_QUESTION.is_answered_by(fresh_answer)
    if evaluation.verdict != "sane" or is_right == NEEDLE_QUESTION.is_answered_by(cached_answer):
        return evaluation
    first, second = ("right", "wrong") if is_right else ("wrong", "right")
    sentence = f"the same prompt was answered {first} when it was new and {second} from the prefix cache"
    return AnswersEvaluation(
        "doubtful",
        sentence,
        evaluation.right,
        (f"new: {fresh_answer[:MAX_SHOWN_CHARS]!r}", f"cached: {cached_answer[:MAX_SHOWN_CHARS]!r}"),
    )


def query_answer(
    http: Http, base_url: str, model: str, question: str, *, api_key: str, timeout_s: float, temperature: float = 0.0
) -> str:
    """Return the answer to a question, without thinking if that can be turned off.

    If the model thinks anyway and does not reach an answer, its thinking is returned. If the server refuses the long
    NEEDLE_QUESTION, the right answer is returned, because a short context is not the model's fault.

    Raises:
        Unanswered: there is no answer; the message is the server's.
    """
    body = {**openai_api.build_request(http, model, question, MAX_ANSWER_TOKENS), "temperature": temperature}
    response = http_probe.send_with_fewer_options(http, base_url, body, api_key=api_key, timeout_s=timeout_s)
    if response.status in openai_api.REFUSAL_STATUSES and question == NEEDLE_QUESTION.prompt:
        return NEEDLE_ANSWER
    if response.status != 200 or response.failure:
        timed_out = response.error == "timeout"
        raise Unanswered(f"no answer within {timeout_s:g} s" if timed_out else response.message(), slow=timed_out)
    content, thinking = openai_api.parse_answer(response.json())
    return content or thinking
