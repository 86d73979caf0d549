"""Findings about a recipe, their fixes, and the registry of the rules that report them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")


@dataclass(frozen=True, slots=True)
class Fix:
    """A way to resolve a finding."""

    text: str
    #: flags to set; None removes a flag; empty if changing flags does not help
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in a recipe."""

    #: error means that the engine refuses to start or generates wrong output
    severity: Severity
    sentence: str
    ways_out: tuple[Fix, ...] = ()
    source: str = ""
    #: the flag that the finding is about, to find its line in the recipe
    flag: str = ""
    #: name of the rule; set by the registry
    rule: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return {**asdict(self), "ways_out": [asdict(fix) for fix in self.ways_out], "flag": self.flag or None}


#: type of the cases that rules check
C = TypeVar("C")
#: type of the rules' examples
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Rule(Generic[C, E]):
    """A rule that reports findings about a recipe."""

    name: str
    title: str
    #: why the rule applies
    reason: str
    #: references for the reason
    sources: tuple[str, ...]
    #: an example for which the rule reports a finding
    example: E
    #: the rule's function
    check: Callable[[C], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class RuleExplanation:
    """The explanation of a rule, with an example and the finding about it."""

    name: str
    title: str
    reason: str
    sources: tuple[str, ...]
    finding: Finding
    #: name of the engine; empty for a rule about every engine
    engine: str = ""
    #: the example's flags, image, engine version, container options and parallelism
    flags: Mapping[str, Any] = field(default_factory=dict)
    image: str = ""
    version: str | None = None
    container: Mapping[str, Any] = field(default_factory=dict)
    parallel: Mapping[str, int] = field(default_factory=dict)


class Rules(dict[str, Rule[C, E]]):
    """A registry of rules, by name."""

    def __init__(
        self,
        case: Callable[[E], Any] = lambda example: example,
        describe_example: Callable[[E], Mapping[str, Any]] = lambda example: {},
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        """Create an empty registry.

        Args:
            case: converts an example to a case.
            describe_example: returns the fields of RuleExplanation for an example.
            aliases: further names of rules, accepted by `explain_rule`.
        """
        super().__init__()
        self._case, self._describe_example, self._aliases = case, describe_example, aliases or {}

    def rule(
        self, name: str, *, sources: Iterable[str], example: E
    ) -> Callable[[Callable[[C], Iterable[Finding]]], Callable[[C], Iterable[Finding]]]:
        """Register a rule. The first line of its docstring is the title, the remaining paragraphs are the reason."""

        def register(check: Callable[[C], Iterable[Finding]]) -> Callable[[C], Iterable[Finding]]:
            def check_and_label(case: C) -> Iterator[Finding]:
                return (replace(finding, rule=name) for finding in check(case))

            title, _, text = (check.__doc__ or "").strip().partition("\n")
            reason = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
            self[name] = Rule(name, title.strip(), reason, tuple(sources), example, check_and_label)
            return check

        return register

    def check(self, case: C) -> list[Finding]:
        """Return all findings, errors first."""
        findings = [finding for rule in self.values() for finding in rule.check(case)]
        return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))

    def titles(self) -> dict[str, str]:
        """Return the titles of the rules, by name."""
        return {rule.name: rule.title for rule in self.values()}

    def explain_rule(self, name: str) -> RuleExplanation | None:
        """Return the explanation of a rule by its name or alias; None if there is no such rule."""
        rule = self.get(self._aliases.get(name, name))
        if rule is None:
            return None
        finding = next(iter(rule.check(self._case(rule.example))))
        return RuleExplanation(
            rule.name, rule.title, rule.reason, rule.sources, finding, **self._describe_example(rule.example)
        )
