"""Every rule against its own example."""

import dataclasses
from typing import Any

import pytest

from sparkwright.app.findings import format_rule
from sparkwright.engines import recipe_rules
from sparkwright.engines.engine import Engine, get_engine, list_supported
from sparkwright.engines.findings import Fix

RULES = [
    *((engine, rules, name) for engine in list_supported() for rules in engine.advice.RULES for name in rules),
    *((get_engine("vllm"), rules, name) for rules in recipe_rules.RULES for name in rules),
]


def apply_changes(case: Any, fix: Fix, engine: Engine) -> Any:
    """Return the case with the changes of a remedy in its flags, or in the flags of its request."""
    request = getattr(case, "request", case)
    flags = {name: value for name, value in (request.flags | fix.changes).items() if value is not None}
    request = dataclasses.replace(request, flags=engine.flags.normalize(flags))
    return dataclasses.replace(case, request=request) if hasattr(case, "request") else request


@pytest.mark.parametrize(("engine", "rules", "name"), RULES, ids=[f"{engine.name}-{name}" for engine, _, name in RULES])
def test_each_rule_reports_its_example_and_each_remedy_resolves_it(engine: Engine, rules: Any, name: str) -> None:
    rule = rules[name]
    case = rule.example.case() if hasattr(rule.example, "case") else rule.example
    findings = list(rule.check(case))
    assert [finding.rule for finding in findings] == [name] * len(findings) != []
    assert rule.title and rule.reason and rule.sources
    for fix in (fix for finding in findings for fix in finding.ways_out):
        # the case of memory-budget holds a computed size instead of flags
        if fix.changes and name != "memory-budget":
            assert not list(rule.check(apply_changes(case, fix, engine))), fix.text
    explanation = rules.explain_rule(name)
    assert explanation is not None
    text = format_rule(explanation)
    assert text.startswith(f"{name}: ") and "Sources:" in text and "fix: " in text
