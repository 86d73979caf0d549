"""Registry of an engine's rules: functions from a case to findings, each with its name, title and reason as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from sparkwright.engines.findings import SEVERITIES, Finding

#: types of an engine's cases, and of its rules' examples
C = TypeVar("C")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Rule(Generic[C, E]):
    """A rule."""

    #: as in findings
    name: str
    title: str
    #: why the rule applies
    reason: str
    #: where that is documented
    sources: tuple[str, ...]
    #: a case for which the rule has a finding
    example: E
    #: the rule's function
    findings: Callable[[C], Iterable[Finding]]


class Rules(dict[str, Rule[C, E]]):
    """Rules by name."""

    def rule(
        self, name: str, *, sources: Iterable[str], example: E
    ) -> Callable[[Callable[[C], Iterable[Finding]]], Callable[[C], Iterable[Finding]]]:
        """Register a rule. Its docstring is its title (first line) and its reason (the rest, in paragraphs)."""

        def register(findings: Callable[[C], Iterable[Finding]]) -> Callable[[C], Iterable[Finding]]:
            def by_name(case: C) -> Iterator[Finding]:
                return (replace(finding, rule=name) for finding in findings(case))

            title, _, reason = (findings.__doc__ or "").strip().partition("\n")
            self[name] = Rule(name, title.strip(), _paragraphs(reason), tuple(sources), example, by_name)
            return findings

        return register

    def check(self, case: C) -> list[Finding]:
        """Return all findings, errors first."""
        found = [finding for rule in self.values() for finding in rule.findings(case)]
        return sorted(found, key=lambda finding: SEVERITIES.index(finding.severity))

    def titles(self) -> dict[str, str]:
        """Return the titles of the rules, by name."""
        return {rule.name: rule.title for rule in self.values()}


def _paragraphs(text: str) -> str:
    """Return a text without line breaks, except those between paragraphs."""
    return "\n\n".join(" ".join(word.split()) for word in text.split("\n\n"))
