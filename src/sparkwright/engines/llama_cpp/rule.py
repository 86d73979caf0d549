"""A rule about a recipe for llama.cpp: a function from what is asked to findings, with its name, title and reason as data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.engines.advice import Asked
from sparkwright.engines.finding import Finding
from sparkwright.engines.llama_cpp import flag_values, flags, options


@dataclass(frozen=True)
class Case:
    """What the rules check. asked: with flags under their own names. build: of llama.cpp, None while it is not known. listed: the
    options in the image's own help, which decides then; empty while it was not asked."""

    asked: Asked
    build: int | None = None
    listed: Collection[str] = ()

    def exists(self, name: str) -> bool | None:
        """Whether this engine has an option; None where that is not known."""
        return name in self.listed if self.listed else flag_values.exists(name, self.build)

    def flag(self, name: str) -> Any:
        """A flag's value; None when it is not given."""
        return flags.value(self.asked.flags, name)

    @property
    def engine(self) -> str:
        return f"llama.cpp b{self.build}" if self.build else "llama-server"


Findings = Callable[[Case], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    """reason: why it applies. sources: where that is documented. example: a case for which it has a finding."""

    name: str
    title: str
    reason: str
    sources: tuple[str, ...]
    example: Case
    findings: Findings


RULES: dict[str, Rule] = {}


def rule(
    name: str, *, sources: Iterable[str], example: Asked, build: int | None = options.NEWER
) -> Callable[[Findings], Findings]:
    """Register a rule. Its docstring is its title (first line) and its reason (the rest)."""

    def register(findings: Findings) -> Findings:
        def by_name(case: Case) -> Iterator[Finding]:
            return (replace(finding, rule=name) for finding in findings(case))

        title, _, reason = (findings.__doc__ or "").strip().partition("\n")
        case = Case(replace(example, flags=flags.named(example.flags)), build)
        RULES[name] = Rule(name, title.strip(), " ".join(reason.split()), tuple(sources), case, by_name)
        return findings

    return register
