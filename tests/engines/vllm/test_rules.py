"""Findings about recipes for vLLM, which depend on the release, and the flags for an expected state of chunked prefill."""

from typing import Any, Literal

import pytest

from sparkwright.engines.advice import Decision
from sparkwright.engines.model.architecture import classify
from sparkwright.engines.vllm import advice, rules, versions
from sparkwright.engines.vllm.rules.rule import DENSE_MODEL, HYBRID_MODEL, Case

UNCHUNKED = {"enable-chunked-prefill": False}


def check_flags(flags: dict[str, Any], model: dict[str, Any], version: str | None, **more: Any) -> dict[str, str]:
    """Return rule names with the severity of their findings."""
    options = rules.VllmRequest(flags, **more)
    return {item.rule: item.severity for item in rules.check(options, classify(model), versions.parse(version))}


@pytest.mark.parametrize(
    ("flags", "version", "severity"),
    [
        ({**UNCHUNKED, "enable-prefix-caching": True}, "0.17.1", "error"),
        ({**UNCHUNKED, "enable-prefix-caching": True}, "0.33.0", "error"),
        ({**UNCHUNKED, "enable-prefix-caching": True}, None, "warning"),
        (UNCHUNKED, "0.27.1", None),
        (UNCHUNKED, "0.28.0", "error"),
        (UNCHUNKED, None, "warning"),
        ({**UNCHUNKED, "enable-prefix-caching": False}, "0.32.0", None),
        ({"disable-chunked-prefill": True}, "0.33.0", "error"),
        ({"no-enable-chunked-prefill": True}, "0.33.0", "error"),
        ({"enable_chunked_prefill": False}, "0.33.0", "error"),
        ({}, "0.32.0", None),
    ],
)
def test_prefix_caching_on_a_hybrid_needs_chunked_prefill(
    flags: dict[str, Any], version: str | None, severity: str | None
) -> None:
    assert check_flags(flags, HYBRID_MODEL, version).get("prefix-caching-needs-chunked-prefill") == severity
    assert "prefix-caching-needs-chunked-prefill" not in check_flags(flags, DENSE_MODEL, version)


def test_families_with_cache_mode_all_may_have_both_before_0_28() -> None:
    bamba = {
        "architectures": ["BambaForCausalLM"],
        "model_type": "bamba",
        "mamba_d_state": 128,
        "attn_layer_indices": [9],
    }
    flags = {**UNCHUNKED, "enable-prefix-caching": True}
    assert "prefix-caching-needs-chunked-prefill" not in check_flags(flags, bamba, "0.17.1")
    assert (
        check_flags({**flags, "mamba-cache-mode": "align"}, bamba, "0.17.1")["prefix-caching-needs-chunked-prefill"]
        == "error"
    )
    assert check_flags(flags, bamba, "0.28.0")["prefix-caching-needs-chunked-prefill"] == "error"


@pytest.mark.parametrize(
    ("dtype", "budget", "version", "severity"),
    [
        ("fp8", None, "0.17.1", "error"),
        ("fp8", None, "0.26.2", "error"),
        ("fp8", None, "0.27.0", None),
        ("fp8", 4096, "0.17.1", None),
        ("auto", None, "0.17.1", None),
        ("fp8", None, None, "warning"),
    ],
)
def test_a_block_of_2096_tokens_exceeds_a_budget_of_2048(
    dtype: str, budget: int | None, version: str | None, severity: str | None
) -> None:
    flags = {"enable-prefix-caching": True, "kv-cache-dtype": dtype}
    flags |= {"max-num-batched-tokens": budget} if budget else {}
    value = check_flags(flags, HYBRID_MODEL, version).get("block-over-budget")
    assert (None if value == "info" else value) == severity


def test_the_suggested_budget_is_the_value_of_the_change() -> None:
    model = {**HYBRID_MODEL, "text_config": {**HYBRID_MODEL["text_config"], "head_dim": 64}}
    findings = rules.check(rules.VllmRequest({"kv-cache-dtype": "fp8"}), classify(model), versions.parse("0.32.0"))
    (way,) = next(finding.ways_out for finding in findings if finding.rule == "block-over-budget")
    assert way.changes == {"max-num-batched-tokens": 16384}
    assert way.text.startswith("raise max-num-batched-tokens to 16384 (at least ")


@pytest.mark.parametrize(
    ("flag", "value", "version", "severity"),
    [
        ("disable-chunked-prefill", True, "0.27.0", "error"),
        ("disable-chunked-prefill", True, "0.33.0", None),
        ("calculate-kv-scales", True, "0.27.1", None),
        ("calculate-kv-scales", True, "0.28.0", "error"),
        ("calculate-kv-scales", True, "0.29.0+nv26.09", "error"),
        ("disable-log-requests", True, "0.16.0", None),
        ("disable-log-requests", True, "0.17.1", "error"),
        ("disable-log-requests", True, None, "warning"),
        ("swap-space", 4, "0.32.0", "error"),
        ("no-such-flag", 1, "0.32.0", "error"),
        ("no-such-flag", 1, None, "warning"),
        ("enable-log-requests", True, "0.32.0", None),
        ("max-num-seqs", 8, "0.11.0", None),
        ("structured-outputs-config.backend", "auto", "0.32.0", None),
    ],
)
def test_flags_exist_in_some_releases(flag: str, value: Any, version: str | None, severity: str | None) -> None:
    assert check_flags({flag: value}, DENSE_MODEL, version).get("unknown-flag") == severity


@pytest.mark.parametrize("listed", [(), ("max-num-seqs", "max-model-len")], ids=["by-table", "by-its-own-list"])
def test_a_misspelt_flag_gets_the_intended_name(listed: tuple[str, ...]) -> None:
    options = rules.VllmRequest({"max-num-seqss": 8})
    result = rules.check(options, classify(DENSE_MODEL), versions.parse("0.32.0"), listed)
    (value,) = (finding for finding in result if finding.rule == "unknown-flag")
    assert [(way.text, way.changes) for way in value.ways_out] == [
        ("write max-num-seqs", {"max-num-seqss": None, "max-num-seqs": 8})
    ]


def test_the_options_of_the_image_outrank_the_table() -> None:
    options = rules.VllmRequest({"calculate-kv-scales": True, "brand-new": 1})
    listed = {"brand-new", "max-num-seqs"}
    (message,) = [
        item
        for item in rules.check(options, classify(DENSE_MODEL), versions.parse("0.20.0"), listed)
        if item.rule == "unknown-flag"
    ]
    assert message.severity == "error"
    assert "0.28.0" in message.sentence


@pytest.mark.parametrize(
    ("flag", "version", "severity", "why"),
    [
        # between two releases that were read, of which both lack it, both have it, or one does
        ("lora-extra-vocab-size", "0.19.1", "error", "it was removed in 0.12.0"),
        ("num-lookahead-slots", "0.10.2", None, ""),
        ("watchdog-config", "0.20.0", "error", "it was added in 0.33.0"),
        ("disable-chunked-prefill", "0.17.1", "error", "it was added in 0.33.0"),
        ("monokernel", "0.33.0", None, ""),
        ("never-heard-of", "0.12.0", "error", "no release from 0.10.2 to 0.33.0 has it"),
        ("lora-extra-vocab-size", "0.11.3", "warning", ""),
        ("never-heard-of", "0.40.0", "warning", ""),
    ],
)
def test_the_options_of_every_known_release(flag: str, version: str, severity: str | None, why: str) -> None:
    options = rules.VllmRequest({flag: True if flag == "disable-chunked-prefill" else 1})
    message = {item.rule: item for item in rules.check(options, classify(DENSE_MODEL), versions.parse(version))}.get(
        "unknown-flag"
    )
    assert (message.severity if message else None) == severity
    assert message is None or why in message.sentence


@pytest.mark.parametrize(
    ("model", "version", "refused"),
    [
        (HYBRID_MODEL, "0.16.0", True),
        (HYBRID_MODEL, "0.17.0", False),
        (HYBRID_MODEL, "0.16.1rc1.dev42+g1234", False),
        (DENSE_MODEL, "0.11.0", False),
    ],
)
def test_an_engine_older_than_its_model_is_refused(model: dict[str, Any], version: str, refused: bool) -> None:
    assert (check_flags({}, model, version).get("architecture-support") == "error") is refused


@pytest.mark.parametrize(
    ("tag", "rule"),
    [
        ("v0.17.1", "cuda13-image"),
        ("v0.17.1-cu130", None),
        ("v0.20.0", None),
        ("v0.20.0-cu129", "cuda13-image"),
        ("cu129-nightly", "cuda13-image"),
        ("cu130-nightly", "frozen-nightly"),
        ("nightly", "moving-tag"),
    ],
)
def test_image_tags_for_a_gb10(tag: str, rule: str | None) -> None:
    names = {"cuda13-image", "frozen-nightly", "moving-tag"}
    assert names & check_flags({}, DENSE_MODEL, None, image=f"vllm/vllm-openai:{tag}").keys() == (
        {rule} if rule else set()
    )


def test_a_thinking_model_gets_the_server_side_switch_from_0_14_on() -> None:
    options, kind = rules.VllmRequest({"reasoning-parser": "qwen3"}), classify(HYBRID_MODEL)
    ways = {
        version: [
            way
            for item in rules.check(options, kind, versions.parse(version))
            if item.rule == "reasoning-truncates-answers"
            for way in item.ways_out
        ]
        for version in ("0.13.0", "0.14.0")
    }
    assert not ways["0.13.0"]
    assert ways["0.14.0"][0].changes == {"default-chat-template-kwargs": {"enable_thinking": False}}


def test_lengths_with_units_are_numbers() -> None:
    assert "unchunked-budget" in check_flags(
        {**UNCHUNKED, "max-model-len": "32k", "max-num-batched-tokens": 4096}, DENSE_MODEL, "0.32.0"
    )
    assert "model-length" in check_flags({"max-model-len": "256K"}, DENSE_MODEL, "0.32.0")


def test_chunked_prefill_off_is_ignored_before_0_11_1() -> None:
    flags = {**UNCHUNKED, "max-num-batched-tokens": 1024}
    message = check_flags(flags, DENSE_MODEL, "0.11.0")
    assert message["ignored-flag"] == "warning"
    assert "unchunked-budget" not in message
    assert check_flags(flags, DENSE_MODEL, "0.12.0")["unchunked-budget"] == "error"


@pytest.mark.parametrize(
    ("flags", "published", "speaks"),
    [
        ({}, 8000, False),
        ({}, None, False),
        ({"port": 9000}, None, False),
        ({"port": 9000}, 9000, False),
        ({"host": "0.0.0.0", "ssl-certfile": None}, 8000, False),
        ({"port": 9000}, 8000, True),
        ({"port": 0}, 8000, True),
        ({}, 9000, True),
        ({}, 0, True),
        ({"host": "127.0.0.1"}, 8000, True),
        ({"host": "::1"}, 8000, True),
        ({"uds": "/tmp/vllm.sock"}, 8000, True),
        ({"headless": True}, 8000, True),
        ({"headless": False}, 8000, False),
        ({"ssl-keyfile": "/key.pem"}, 8000, True),
    ],
)
def test_an_unreachable_server_is_refused(flags: dict[str, Any], published: int | None, speaks: bool) -> None:
    assert check_flags(flags, DENSE_MODEL, "0.32.0", published=published).get("out-of-reach") == (
        "error" if speaks else None
    )


@pytest.mark.parametrize(
    ("flags", "result"),
    [
        ({}, []),
        ({"safetensors-load-strategy": "lazy"}, []),
        ({"safetensors-load-strategy": "eager"}, ["twice the file's size"]),
        ({"load-format": "fastsafetensors"}, ["needs fastsafetensors in the image"]),
        ({"load-format": "dummy"}, ["random weights"]),
    ],
)
def test_weight_loading_options_with_extra_costs_are_reported(flags: dict[str, Any], result: list[str]) -> None:
    case = Case(rules.VllmRequest(flags), classify(DENSE_MODEL), versions.parse("0.32.0"))
    message = [finding.sentence for finding in rules.RULES["weights-loading"].findings(case)]
    assert len(message) == len(result) and all(word in value for word, value in zip(result, message, strict=True))


def test_experts_per_token_are_compared_with_the_model_config() -> None:
    model = {**DENSE_MODEL, "text_config": {"num_experts_per_tok": 8}}
    for given, message in (
        ({"text_config": {"num_experts_per_tok": 16}}, True),
        ('{"num_experts_per_tok": 4}', True),
        ({"num_experts_per_tok": 8}, False),
        ({"rope_theta": 1}, False),
        ("not json", False),
    ):
        assert ("experts-per-token" in check_flags({"hf-overrides": given}, model, "0.32.0")) == message, given


def test_a_parser_among_the_model_files_is_named_until_it_is_loaded() -> None:
    pinned = {"/models/m": ["config.json", "sub/super_v3_reasoning_parser.py", "parser.py", "reasoning.md"]}
    assert "parser-of-the-model" in check_flags({}, DENSE_MODEL, "0.32.0", pinned=pinned)
    loaded = {"reasoning-parser-plugin": "/models/m/sub/super_v3_reasoning_parser.py"}
    assert "parser-of-the-model" not in check_flags(loaded, DENSE_MODEL, "0.32.0", pinned=pinned)


# `expect.chunked_prefill` becomes flags, a refusal with both ways out, or a report.


PREFIX = {"enable-prefix-caching": True}


def decide_chunked_prefill(
    flags: dict[str, Any], model: dict[str, Any], version: str | None, when: Literal["refuse", "report"] = "refuse"
) -> Decision:
    return advice.decide(rules.VllmRequest(flags), model, versions.parse(version), "disabled", when)


@pytest.mark.parametrize("version", ["0.17.1", "0.28.0", "0.33.0", None])
def test_disabled_chunked_prefill_gives_flags_that_the_rules_accept(version: str | None) -> None:
    for model in (DENSE_MODEL, HYBRID_MODEL):
        decided = decide_chunked_prefill({"max-model-len": 4096}, model, version)
        assert decided.flags["enable-chunked-prefill"] is False
        assert decided.expected == "disabled"
        message = rules.check(rules.VllmRequest(decided.flags), classify(model), versions.parse(version))
        assert not [
            item for item in message if item.rule in ("prefix-caching-needs-chunked-prefill", "unchunked-budget")
        ]


@pytest.mark.parametrize("version", ["0.17.1", "0.33.0", None])
def test_prefix_caching_on_a_hybrid_is_refused_with_both_remedies(version: str | None) -> None:
    finding = decide_chunked_prefill(PREFIX, HYBRID_MODEL, version).finding
    assert finding is not None and finding.severity == "error"
    assert [bool(way.changes) for way in finding.ways_out] == [True, False]


def test_a_conflict_can_be_reported_instead() -> None:
    decided = decide_chunked_prefill({**PREFIX, "enable-chunked-prefill": False}, HYBRID_MODEL, "0.32.0", "report")
    assert decided.note == "on, required by prefix caching"
    assert decided.expected == "any"
    assert decided.flags == PREFIX


def test_a_dense_model_may_have_prefix_caching_without_chunked_prefill() -> None:
    assert decide_chunked_prefill(PREFIX, DENSE_MODEL, "0.32.0").flags == {**PREFIX, "enable-chunked-prefill": False}


def test_an_engine_that_ignores_the_flag_cannot_disable_chunked_prefill() -> None:
    finding = decide_chunked_prefill({}, DENSE_MODEL, "0.11.0").finding
    assert finding is not None and "ignored" in finding.sentence
