"""Probes: small requests, rules that evaluate the answers, and the engine flags that cause faults."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sparkwright.visible import one_line

Verdict = Literal["proved", "disproved", "inconclusive"]
#: a fault in an answer; ProbeFlags.causes names the responsible flags
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
#: marks around a model's thinking, which a reasoning parser removes: of DeepSeek, Qwen and others (`think`), Seed and MiniMax M3
#: (`seed:think`, `mm:think`), gpt-oss and Gemma 4 (`channel`), Kimi, Mistral and Cohere
THINKING_MARK_PATTERN = re.compile(
    r"</?(?:(?:seed|mm):)?think(?:ing)?>|\[/?THINK\]|<\|channel\|?>|<channel\|>|◁/?think▷|<\|(?:START|END)_THINKING\|>"
)
MAX_SEARCHED_CHARS = 1 << 16
#: fields of a message that may contain its thinking; the last is in Anthropic's API
THINKING_FIELDS = ("reasoning", "reasoning_content", "thinking")
#: row of ProbeFlags.causes_by_message for errors of Jinja, or of a template's raise_exception, about a conversation
TEMPLATE_REFUSAL = (
    r"roles must alternate|[Tt]emplate|jinja|can only get item pairs|only .{0,40}roles? .{0,40}supported",
    "the model's chat template refuses this conversation: set --chat-template to another template",
)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """The result of a probe."""

    verdict: Verdict
    evidence: str  # a clause
    fault: Fault | None = None  # None also for an unknown fault
    message: str = ""  # the server's error message if it refused the request
    note: str = ""  # a clause for clients about an answer without a fault


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a probe."""

    #: HTTP status
    status: int
    #: the server's error message; empty if there is none
    message: str
    #: parsed JSON; None if it is invalid
    body: Any
    #: error in the order of a stream's events, as a clause; empty if the order is correct
    order_error: str = ""

    @property
    def choice(self) -> Mapping[str, Any]:
        """The first choice of a chat answer; empty if there is none."""
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
        return _as_text(self.first_message.get("content"))

    @property
    def thinking(self) -> str:
        return _as_text(self.first_message.get(self.thinking_field))

    @property
    def thinking_field(self) -> str:
        """The name of the field that contains the thinking; empty if there is no thinking."""
        return next((name for name in THINKING_FIELDS if _as_text(self.first_message.get(name))), "")

    @property
    def is_truncated(self) -> bool:
        """True if the answer reached the token limit."""
        return self.choice.get("finish_reason") == "length"


@dataclass(frozen=True, slots=True)
class Probe:
    """A small request, and the rule that evaluates its answer."""

    name: str  # name in the recipe, with its value
    path: str
    #: request body without the model's name, in chat format for every API that generates text
    body: Mapping[str, Any]
    rule: Callable[[Reply], ProbeResult]  # evaluates an answer with status 200
    thinks: bool | None = False  # the request turns thinking on or off; None if it does not mention thinking
    refusal_fault: Fault | None = None  # the fault if the status is not 200
    streamed: bool = False  # request a stream
    #: a variant of a recipe's probe, sent only after that probe succeeded, and reported only if it fails
    variant: bool = False
    #: a server may refuse the request, or its fields
    optional: bool = False
    #: a note for clients if the server reports an internal error; "" if such an error is a failure
    server_error_note: str = ""

    def as_stream(self) -> Probe:
        """Return the variant that requests a stream, as most clients do."""
        return replace(self, name=f"{self.name}, streamed", streamed=True, variant=True)

    def evaluate(self, reply: Reply) -> ProbeResult:
        """Evaluate an answer with status 200, whose content must not contain thinking marks."""
        if reply.order_error:
            return ProbeResult("disproved", reply.order_error, "events out of order", reply.order_error)
        if THINKING_MARK_PATTERN.search(reply.content[:MAX_SEARCHED_CHARS]):
            evidence = f"the thinking is in the content: {quote_text(reply.content)}"
            return ProbeResult("disproved", evidence, "thinking in content")
        return self.rule(reply)


@dataclass(frozen=True, slots=True)
class ProbeFlags:
    """The flags of an engine that a probe depends on."""

    #: flag whose presence shows that clients need the probed feature, by probe
    promises: Mapping[str, str] = field(default_factory=dict)
    #: flags without which a probe fails, by probe
    required_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: flags that are on by default and without which a probe fails, by probe
    default_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    #: the responsible flags, as a clause, by fault
    causes: Mapping[Fault, str] = field(default_factory=dict)
    #: (pattern of the server's error message, cause), specific patterns first
    causes_by_message: tuple[tuple[str, str], ...] = ()

    def missing_flags(self, probe: str, flags: Mapping[str, Any]) -> list[str]:
        """Return the flags, by canonical name, that are off and without which a probe fails."""
        required_flags = [flag for flag in self.required_flags.get(probe, ()) if flags.get(flag) in (None, False)]
        return required_flags + [flag for flag in self.default_flags.get(probe, ()) if flags.get(flag) is False]

    def cause(self, fault: Fault | None, message: str = "") -> str:
        """Return the likely cause of a fault; "" if unknown.

        message: the server's error message if it refused the request; a cause for it takes precedence over `causes`.
        """
        causes = (cause for pattern, cause in self.causes_by_message if message and re.search(pattern, message))
        return next(causes, "") or (self.causes.get(fault, "") if fault else "")


def quote_text(text: str) -> str:
    """Return the beginning of a model's text in quotes, on one line."""
    return f"'{one_line(text.strip(), max_chars=MAX_QUOTED_CHARS)}'"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else ""
