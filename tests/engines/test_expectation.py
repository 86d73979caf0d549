"""`expect.chunked_prefill` becomes flags, a refusal with both ways out, or a report."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from sparkwright.engines.model.architecture import classify
from sparkwright.engines.vllm import advice, rules, versions
from sparkwright.engines.vllm.rules.rule import DENSE, HYBRID

PREFIX = {"enable-prefix-caching": True}


def decide(
    flags: dict[str, Any], model: dict[str, Any], version: str | None, when: Literal["refuse", "report"] = "refuse"
) -> advice.Decision:
    return advice.expected_flags(rules.VllmRequest(flags), classify(model), versions.parse(version), "disabled", when)


@pytest.mark.parametrize("version", ["0.17.1", "0.28.0", "0.33.0", None])
def test_off_is_had_with_flags_that_the_rules_then_accept(version: str | None) -> None:
    for model in (DENSE, HYBRID):
        decided = decide({"max-model-len": 4096}, model, version)
        assert decided.flags["enable-chunked-prefill"] is False
        assert decided.expected == "disabled"
        told = rules.check(rules.VllmRequest(decided.flags), classify(model), versions.parse(version))
        assert not [item for item in told if item.rule in ("prefix-caching-needs-chunked-prefill", "unchunked-budget")]


@pytest.mark.parametrize("version", ["0.17.1", "0.33.0", None])
def test_with_prefix_caching_wanted_on_a_hybrid_it_is_refused_with_both_ways_out(version: str | None) -> None:
    finding = decide(PREFIX, HYBRID, version).finding
    assert finding is not None and finding.severity == "error"
    assert [bool(way.changes) for way in finding.ways_out] == [True, False]


def test_or_reported_and_left_on() -> None:
    decided = decide({**PREFIX, "enable-chunked-prefill": False}, HYBRID, "0.32.0", "report")
    assert decided.note == "on, required by prefix caching"
    assert decided.expected == "any"
    assert decided.flags == PREFIX


def test_a_dense_model_may_have_prefix_caching_without_it() -> None:
    assert decide(PREFIX, DENSE, "0.32.0").flags == {**PREFIX, "enable-chunked-prefill": False}


def test_an_engine_that_ignores_the_flag_can_not_have_it_off() -> None:
    finding = decide({}, DENSE, "0.11.0").finding
    assert finding is not None and "ignored" in finding.sentence
