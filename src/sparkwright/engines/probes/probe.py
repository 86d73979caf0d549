"""What a probe asks, and what its answer shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.visible import one_line

Verdict = Literal["proved", "disproved", "inconclusive"]
#: what may be wrong with an answer; an engine says which of its flags causes it
Fault = Literal[
    "tools refused",
    "tool call as text",
    "tool call in the thinking",
    "tool call with bad arguments",
    "no tool call",
    "content null",
    "thinking in content",
    "no thinking apart",
    "not the schema",
    "picture refused",
    "picture not seen",
    "another dimension",
    "another language",
    "garbage",
]
QUOTED_CHARS = 120


@dataclass(frozen=True, slots=True)
class Seen:
    """What an answer shows. evidence: a clause. fault: what is wrong with it; None where nothing is, or it is not known."""

    verdict: Verdict
    evidence: str
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer to a probe. status: of HTTP. message: an error's own words. body: its JSON; None where it is none."""

    status: int
    message: str
    body: Any

    @property
    def choice(self) -> Mapping[str, Any]:
        """The first choice of a chat's answer; empty where there is none."""
        try:
            found = self.body["choices"][0]
        except (KeyError, IndexError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def message_of(self) -> Mapping[str, Any]:
        """Its message; empty where there is none."""
        found = self.choice.get("message")
        return found if isinstance(found, dict) else {}

    @property
    def content(self) -> str:
        """Its text for the user."""
        return _text(self.message_of.get("content"))

    @property
    def thinking(self) -> str:
        """Its thinking, under either name."""
        return _text(self.message_of.get("reasoning")) or _text(self.message_of.get("reasoning_content"))

    @property
    def thinking_field(self) -> str:
        """The name under which the thinking came; empty for none."""
        return next((name for name in ("reasoning", "reasoning_content") if _text(self.message_of.get(name))), "")

    @property
    def cut(self) -> bool:
        """Whether it ended because it had no more tokens."""
        return self.choice.get("finish_reason") == "length"


@dataclass(frozen=True, slots=True)
class Probe:
    """One probe. name: as the recipe has it, with its value. path, body: the request, without the model. thinks: it is asked to
    think, or not to; None where that is not said. judge: what an answer under 200 shows. refused: the fault of one that is not."""

    name: str
    path: str
    body: Mapping[str, Any]
    judge: Callable[[Reply], Seen]
    thinks: bool | None = False
    refused: Fault | None = None


@dataclass(frozen=True, slots=True)
class ProbeFlags:
    """An engine's flags, by what goes wrong without them or with a wrong value. needs: flags a probe cannot pass without, by its name;
    causes: which flag causes a fault, as a sentence; promises: the flag by which a recipe says that its clients rely on it."""

    promises: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    causes: Mapping[Fault, str] = field(default_factory=dict)


def quoted(text: str) -> str:
    """The beginning of what a model said, on one line."""
    return f"'{one_line(text.strip(), at_most=QUOTED_CHARS)}'"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
