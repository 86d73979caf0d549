"""Rules about a recipe for llama.cpp: functions from a case to findings, with name, title and reason as data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.findings import Finding, Rules
from sparkwright.engines.llama_cpp import flags, options
from sparkwright.engines.option_history import Existence


@dataclass(frozen=True)
class Case:
    """The input of the rules."""

    #: with flags under their own names
    asked: ServerRequest
    #: of llama.cpp; None while it is not known
    build: int | None = None
    #: the options in the image's own help, which then decides; empty while the image was not run
    listed: Collection[str] = ()

    def exists(self, name: str) -> Existence:
        """Return the existence of an option in this engine: its own help decides, else the table of builds."""
        known = flags.HISTORY.existence(name, self.release)
        if not self.listed:
            return known
        return Existence(name in self.listed, known.why if known.exists is False else "its own help does not list it")

    @property
    def options(self) -> Collection[str]:
        """The names of the options that this engine has, as far as known."""
        return self.listed or [name for name in flags.known() if self.exists(name).exists is not False]

    @property
    def release(self) -> str | None:
        return f"b{self.build}" if self.build else None

    def flag(self, name: str) -> Any:
        """Return the value of a flag; None if it is not set."""
        return flags.value(self.asked.flags, name)

    @property
    def engine(self) -> str:
        return f"llama.cpp b{self.build}" if self.build else "llama-server"


Findings = Callable[[Case], Iterable[Finding]]

RULES: Rules[Case, Case] = Rules()


def rule(
    name: str, *, sources: Iterable[str], example: ServerRequest, build: int | None = options.NEWER
) -> Callable[[Findings], Findings]:
    """Register a rule; see `Rules.rule`. build: of its example."""
    case = Case(replace(example, flags=flags.named(example.flags)), build)
    return RULES.rule(name, sources=sources, example=case)
