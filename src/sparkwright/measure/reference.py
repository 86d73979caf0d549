"""Check that a server runs the expected model: greedy texts of a few fixed prompts, compared with earlier ones.

Greedy decoding repeats itself except at near-ties: a batch, a cache or a kernel rounds differently, and the second best token
wins. So at the first difference between two texts, the distance of the two tokens counts, by the log probabilities of both runs:
docs/decisions/0015.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.engines import openai_api
from sparkwright.engines.http import Http
from sparkwright.measure import http_probe
from sparkwright.trust.bounds import number_of

Verdict = Literal["same", "doubtful", "another"]

#: answered with more than TOKENS tokens, by each model in its own words; none depends on the date. Others are another
#: PROMPT_SET.
PROMPTS: tuple[str, ...] = (
    "Explain in three sentences why the sky is blue.",
    "List the planets of the solar system from the sun outwards, with one sentence about each.",
    "Write a Python function that returns the n-th Fibonacci number, with a docstring.",
)
PROMPT_SET = 1
#: additional prompt for clusters, some 2,000 tokens: a member with a shorter context still answers the short prompts
LONG = "\n".join(
    (*(f"Item {n}: {n} times {n} is {n * n}." for n in range(1, 121)), "What do these lines have in common?")
)
LONG_NAME = "a long prompt"
TOKENS = 32
TOP = 5
#: two tokens closer than that, in nats, in both runs are a near-tie: two steps of a bfloat16 logit between 16 and 32
TIE = 0.25
#: rounding hardly ever changes a text so early, and never all texts; without log probabilities it is a share of the text
EARLY_TOKENS, EARLY_SHARE = 8, 0.25
CONTEXT_CHARS = 24
#: largest absolute log probability; servers return -9999 for none
MOST = 1e4

#: a token and its log probability
Choice = tuple[str, float]


class Unanswered(Exception):
    """A prompt got no text.

    Args:
        message: the error.
        slow: it timed out, which other requests may cause.
    """

    def __init__(self, message: str, *, slow: bool = False) -> None:
        super().__init__(message)
        self.slow = slow


@dataclass(frozen=True, slots=True)
class Text:
    """A generated text."""

    text: str
    #: the likeliest tokens at each step, the generated one first; empty if the server returns no log probabilities
    steps: tuple[tuple[Choice, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "steps": [[list(choice) for choice in step] for step in self.steps]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Text:
        return cls(data["text"], tuple(tuple((word, value) for word, value in step) for step in data["steps"]))


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference between two texts of a prompt."""

    prompt: str
    before: str
    now: str
    #: index of the first differing character, counted from 0
    char: int
    #: number of the first differing token, counted from 1; 0 if only characters are known
    token: int = 0
    #: distance of the two tokens in the run where it is larger, nats; None if unknown
    gap: float | None = None
    #: a near-tie: the tokens are closer than TIE in both runs
    tied: bool = False

    @property
    def sentence(self) -> str:
        where = f"token {self.token}" if self.token else f"character {self.char + 1}"
        how = "" if self.gap is None else f", {self.gap:.2f} nats apart" if self.gap < TIE else ", no near-tie"
        return f"{self.prompt!r} parts at {where}{how}: {_about(self.before, self.char)} is now {_about(self.now, self.char)}"


def ask(http: Http, base_url: str, model: str, *, api_key: str, timeout_s: float, long: bool = False) -> list[Text]:
    """Return the texts of all prompts, asked one after the other. Raises Unanswered.

    Args:
        http: the engine's HTTP API.
        base_url: of the server.
        model: served name.
        api_key: of the server.
        timeout_s: of each request.
        long: also ask LONG, unless the context is too short for it.
    """
    texts = []
    for item in (*PROMPTS, *((LONG,) if long else ())):
        body = openai_api.reference(http, model, item, TOKENS, TOP)
        answer = http_probe.ask_plainly(http, base_url, body, api_key=api_key, timeout_s=timeout_s)
        if item is LONG and answer.status in openai_api.REFUSALS:
            break
        texts.append(_text(answer, timeout_s))
    return texts


def _text(answer: http_probe.Answer, timeout_s: float) -> Text:
    """Return the generated text. Raises Unanswered."""
    if answer.error == "timeout":
        raise Unanswered(f"no text within {timeout_s:g} s", slow=True)
    if answer.status != 200 or answer.failure:
        raise Unanswered(f"{answer.status or ''} {answer.message()}".strip())
    found = answer.json()
    content, thought = openai_api.spoken(found)
    return Text(content or thought, _steps(openai_api.logprobs(found)))


def _steps(rows: Sequence[Sequence[tuple[str, Any]]]) -> tuple[tuple[Choice, ...], ...]:
    """Return the candidates of each step, the likeliest first; empty if a step has no probabilities."""
    steps = []
    for row in rows[:TOKENS]:
        choices = [(word, value) for word, given in row if (value := number_of(str(given), most=MOST)) is not None]
        if not choices:
            return ()
        steps.append(tuple(sorted(choices, key=lambda choice: -choice[1])[:TOP]))
    return tuple(steps)


def judge(before: Sequence[Text], now: Sequence[Text]) -> tuple[Verdict, list[Parting]]:
    """Return the verdict on the texts of all prompts, and their first differences. Pure.

    "another": all prompts differ, each at no near-tie or within its first tokens. "doubtful": some prompt differs at no near-tie,
    or all prompts differ, which rounding alone hardly causes.
    """
    pairs = list(zip((*PROMPTS, LONG_NAME), before, now, strict=False))
    partings = [found for prompt, old, new in pairs if (found := parting(prompt, old, new)) is not None]
    every = len(partings) == len(pairs) > 0
    if every and all(map(_certain, partings)):
        return "another", partings
    return ("doubtful" if every or not all(removal.tied for removal in partings) else "same"), partings


def _certain(removal: Parting) -> bool:
    """Return True if rounding is unlikely to cause this difference."""
    if removal.gap is None:
        return removal.char < EARLY_SHARE * len(removal.before)
    return not removal.tied or removal.token <= EARLY_TOKENS


def parting(prompt: str, before: Text, now: Text) -> Parting | None:
    """Return the first difference between a prompt's texts, or None. Pure."""
    char = next((n for n, (a, b) in enumerate(zip(before.text, now.text, strict=False)) if a != b), None)
    if char is None and len(before.text) == len(now.text):
        return None
    char = min(len(before.text), len(now.text)) if char is None else char
    if not before.steps or not now.steps:
        return Parting(prompt, before.text, now.text, char)
    for n, (old, new) in enumerate(zip(before.steps, now.steps, strict=False), 1):
        if old[0][0] != new[0][0]:
            gap = max(_gap(old, new[0][0]), _gap(new, old[0][0]))
            return Parting(prompt, before.text, now.text, char, n, gap, gap < TIE)
    shorter = min(len(before.steps), len(now.steps))  # one of the texts ends here
    return Parting(prompt, before.text, now.text, char, shorter + 1, float("inf"))


def _gap(step: Sequence[Choice], word: str) -> float:
    """Return how far another token is below the generated one, in nats; infinite if it is not among the likeliest."""
    return next((step[0][1] - value for other, value in step if other == word), float("inf"))


def _about(text: str, char: int) -> str:
    """Return the text around a position."""
    start = max(0, char - CONTEXT_CHARS)
    return repr(("…" if start else "") + text[start : char + CONTEXT_CHARS])
