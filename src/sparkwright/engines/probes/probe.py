"""Probes: small requests, the rules that evaluate their answers, and the flags that cause faults."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sparkwright.visible import one_line

Verdict = Literal["proved", "disproved", "inconclusive"]
#: fault of an answer; ProbeFlags has the flag that causes it
Fault = Literal[
    "tools refused",
    "tool call as text",
    "tool call in the thinking",
    "tool call with bad arguments",
    "no tool call",
    "tool choice ignored",
    "only without stream",
    "content null",
    "thinking in content",
    "no thinking apart",
    "not the schema",
    "picture refused",
    "picture not seen",
    "another dimension",
    "another language",
    "garbage",
    "events out of order",
    "path missing",
    "another count",
]
MAX_QUOTED_CHARS = 120
#: marks that models write around their thinking before a parser takes it out
THINKING_MARKS = re.compile(r"</?think(ing)?>|\[/?THINK\]|</?seed:think>|<\|channel\|>|◁/?think▷|<\|START_THINKING\|>")
MAX_SEARCHED_CHARS = 1 << 16


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe."""

    verdict: Verdict
    evidence: str  # a clause
    fault: Fault | None = None  # None if there is no fault, or an unknown one
    words: str = ""  # the error message of a server that refused the request
    note: str = ""  # a clause for clients about an answer without a fault


#: fields of a message that hold thinking; the last is of Anthropic's API
THINKING_FIELDS = ("reasoning", "reasoning_content", "thinking")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a probe."""

    #: HTTP status
    status: int
    #: the error's own words
    message: str
    #: JSON of the answer; None if it is none
    body: Any
    #: error in the order of a stream's events; empty for none
    disorder: str = ""

    @property
    def choice(self) -> Mapping[str, Any]:
        """The first choice of a chat's answer; empty if there is none."""
        try:
            choice = self.body["choices"][0]
        except (KeyError, IndexError, TypeError):
            return {}
        return choice if isinstance(choice, dict) else {}

    @property
    def first_message(self) -> Mapping[str, Any]:
        """The message of the first choice; empty if there is none."""
        message = self.choice.get("message")
        return message if isinstance(message, dict) else {}

    @property
    def content(self) -> str:
        """The text for the user."""
        return _as_text(self.first_message.get("content"))

    @property
    def thinking(self) -> str:
        """The thinking, from any of its fields."""
        return _as_text(self.first_message.get(self.thinking_field))

    @property
    def thinking_field(self) -> str:
        """The name of the field that holds the thinking; empty for none."""
        return next((name for name in THINKING_FIELDS if _as_text(self.first_message.get(name))), "")

    @property
    def cut(self) -> bool:
        """True if the answer ended because it ran out of tokens."""
        return self.choice.get("finish_reason") == "length"


@dataclass(frozen=True, slots=True)
class Probe:
    """A small request, and the rule that evaluates its answer."""

    name: str  # as the recipe has it, with its value
    path: str
    #: without the model's name; in the form of a chat for every API that generates text
    body: Mapping[str, Any]
    rule: Callable[[Reply], ProbeResult]  # judges an answer with status 200
    thinks: bool | None = False  # turns thinking on or off; None to leave it out of the request
    refused: Fault | None = None  # the fault if the status is not 200
    streamed: bool = False  # request a stream
    #: a variant of a recipe's probe: sent once that is proved, and reported only if it fails
    variant: bool = False
    #: a server may refuse the request, or its fields
    optional: bool = False
    #: a note for clients if the server reports an internal error; "" if that counts as a failure
    of_server_error: str = ""

    def as_stream(self) -> Probe:
        """Return the same request as a stream, as most clients send it."""
        return replace(self, name=f"{self.name}, streamed", streamed=True, variant=True)

    def evaluate(self, reply: Reply) -> ProbeResult:
        """Evaluate an answer. The content of an answer must not contain thinking marks."""
        if reply.disorder:
            return ProbeResult("disproved", reply.disorder, "events out of order", reply.disorder)
        if THINKING_MARKS.search(reply.content[:MAX_SEARCHED_CHARS]):
            return ProbeResult(
                "disproved", f"the thinking is in the content: {quote_text(reply.content)}", "thinking in content"
            )
        return self.rule(reply)


#: row of ProbeFlags.by_message for Jinja's errors, and those of a template's raise_exception, about a conversation
TEMPLATE_REFUSAL = (
    r"roles must alternate|[Tt]emplate|jinja|can only get item pairs|only .{0,40}roles? .{0,40}supported",
    "the model's chat template refuses this conversation: set --chat-template to another template",
)


@dataclass(frozen=True, slots=True)
class ProbeFlags:
    """An engine's flags whose absence or value causes faults."""

    #: the flag that shows that a recipe's clients rely on a probe, by the probe's name
    promises: Mapping[str, str] = field(default_factory=dict)
    #: flags without which a probe fails, by the probe's name
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: the flag that causes a fault, as a sentence, by the fault
    causes: Mapping[Fault, str] = field(default_factory=dict)
    #: causes by the server's error message, specific ones first: a pattern, and the sentence
    by_message: tuple[tuple[str, str], ...] = ()

    def cause(self, fault: Fault | None, words: str = "") -> str:
        """Return the likely cause of a fault, "" if none is known.

        Args:
            fault: the fault of the answer.
            words: the server's error message, if it refused the request: a cause by message wins over the usual one.
        """
        by_message = next(
            (sentence for pattern, sentence in self.by_message if words and re.search(pattern, words)), ""
        )
        return by_message or (self.causes.get(fault, "") if fault else "")


def quote_text(text: str) -> str:
    """Return the beginning of a model's text, on one line."""
    return f"'{one_line(text.strip(), max_chars=MAX_QUOTED_CHARS)}'"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""
