"""Findings about recipes for vLLM, which depend on the release, and the flags for an expected state of chunked prefill."""

from collections.abc import Collection
from typing import Any

import pytest

from sparkwright.engines.advice import Decision
from sparkwright.engines.findings import Finding
from sparkwright.engines.model.architecture import classify
from sparkwright.engines.vllm import advice, rules, versions
from sparkwright.engines.vllm.prediction import predict_effective_settings
from sparkwright.engines.vllm.rules.rule import DENSE_MODEL, HYBRID_MODEL, Case

UNCHUNKED = {"enable-chunked-prefill": False}


def find_problems(
    flags: dict[str, Any], model: dict[str, Any], version: str | None, listed: Collection[str] = (), **request: Any
) -> dict[str, Finding]:
    """Return the findings by rule. listed: the options of the image."""
    checked_request = rules.VllmRequest(flags, **request)
    return {item.rule: item for item in rules.check(checked_request, classify(model), versions.parse(version), listed)}


def check_flags(flags: dict[str, Any], model: dict[str, Any], version: str | None, **request: Any) -> dict[str, str]:
    """Return rule names with the severity of their findings."""
    return {rule: finding.severity for rule, finding in find_problems(flags, model, version, **request).items()}


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
def test_prefix_caching_needs_chunked_prefill(flags: dict[str, Any], version: str | None, severity: str | None) -> None:
    assert check_flags(flags, HYBRID_MODEL, version).get("prefix-caching-needs-chunked-prefill") == severity
    assert "prefix-caching-needs-chunked-prefill" not in check_flags(flags, DENSE_MODEL, version)


@pytest.mark.parametrize(
    ("flags", "version", "severity"),
    [({}, "0.17.1", None), ({"mamba-cache-mode": "align"}, "0.17.1", "error"), ({}, "0.28.0", "error")],
)
def test_cache_mode_all_needs_no_chunked_prefill(flags: dict[str, Any], version: str, severity: str | None) -> None:
    architecture = {"architectures": ["BambaForCausalLM"], "model_type": "bamba"}
    bamba = {**architecture, "mamba_d_state": 128, "attn_layer_indices": [9]}
    found = check_flags({**UNCHUNKED, "enable-prefix-caching": True, **flags}, bamba, version)
    assert found.get("prefix-caching-needs-chunked-prefill") == severity


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
def test_a_block_exceeds_the_budget(dtype: str, budget: int | None, version: str | None, severity: str | None) -> None:
    flags = {"enable-prefix-caching": True, "kv-cache-dtype": dtype}
    flags |= {"max-num-batched-tokens": budget} if budget else {}
    found = check_flags(flags, HYBRID_MODEL, version).get("block-over-budget")
    assert (None if found == "info" else found) == severity


@pytest.mark.parametrize(
    ("flags", "severity"),
    [
        ({}, None),
        ({"speculative-config": {"method": "mtp", "num_speculative_tokens": 1}}, "error"),
        ({"speculative-config": '{"method": "mtp", "num_speculative_tokens": 1}'}, "error"),
        ({"speculative-config.method": "mtp", "speculative-config.num_speculative_tokens": 1}, "error"),
        (
            {"speculative-config": {"method": "mtp", "num_speculative_tokens": 1}, "mamba-ssm-cache-dtype": "bfloat16"},
            None,
        ),
    ],
)
def test_a_block_covers_draft_tokens_and_the_dtype_of_the_state(flags: dict[str, Any], severity: str | None) -> None:
    # 2096 tokens without drafts, 2112 with one
    budget = {"enable-prefix-caching": True, "kv-cache-dtype": "fp8", "max-num-batched-tokens": 2100}
    found = check_flags({**budget, **flags}, HYBRID_MODEL, "0.17.1").get("block-over-budget")
    assert (None if found == "info" else found) == severity


def test_the_suggested_budget_is_the_value_of_the_change() -> None:
    model = {**HYBRID_MODEL, "text_config": {**HYBRID_MODEL["text_config"], "head_dim": 64}}
    (remedy,) = find_problems({"kv-cache-dtype": "fp8"}, model, "0.32.0")["block-over-budget"].ways_out
    assert remedy.changes == {"max-num-batched-tokens": 16384}
    assert remedy.text.startswith("raise max-num-batched-tokens to 16384 (at least ")


@pytest.mark.parametrize(
    ("flag", "value", "version", "severity", "reason"),
    [
        ("disable-chunked-prefill", True, "0.17.1", "error", "it was added in 0.33.0"),
        ("disable-chunked-prefill", True, "0.33.0", None, ""),
        ("calculate-kv-scales", True, "0.27.1", None, ""),
        ("calculate-kv-scales", True, "0.28.0", "error", ""),
        ("calculate-kv-scales", True, "0.29.0+nv26.09", "error", ""),
        ("disable-log-requests", True, "0.16.0", None, ""),
        ("disable-log-requests", True, "0.17.1", "error", ""),
        ("disable-log-requests", True, None, "warning", ""),
        ("swap-space", 4, "0.32.0", "error", ""),
        ("no-such-flag", 1, "0.32.0", "error", ""),
        ("no-such-flag", 1, None, "warning", ""),
        ("enable-log-requests", True, "0.32.0", None, ""),
        ("max-num-seqs", 8, "0.11.0", None, ""),
        ("structured-outputs-config.backend", "auto", "0.32.0", None, ""),
        # between two known releases: both lack the flag, both have it, or one has it
        ("lora-extra-vocab-size", 1, "0.19.1", "error", "it was removed in 0.12.0"),
        ("lora-extra-vocab-size", 1, "0.11.3", "warning", ""),
        ("num-lookahead-slots", 1, "0.10.2", None, ""),
        ("watchdog-config", 1, "0.20.0", "error", "it was added in 0.33.0"),
        ("monokernel", 1, "0.33.0", None, ""),
        ("no-such-flag", 1, "0.12.0", "error", "no release from 0.10.2 to 0.33.0 has it"),
        ("no-such-flag", 1, "0.40.0", "warning", ""),
    ],
)
def test_flags_exist_in_releases(flag: str, value: Any, version: str | None, severity: str | None, reason: str) -> None:
    finding = find_problems({flag: value}, DENSE_MODEL, version).get("unknown-flag")
    assert (finding.severity if finding else None) == severity
    assert finding is None or reason in finding.sentence


@pytest.mark.parametrize("listed", [(), ("max-num-seqs", "max-model-len")], ids=["table", "options of the image"])
def test_a_misspelt_flag_gets_the_intended_name(listed: tuple[str, ...]) -> None:
    finding = find_problems({"max-num-seqss": 8}, DENSE_MODEL, "0.32.0", listed)["unknown-flag"]
    assert [(way.text, way.changes) for way in finding.ways_out] == [
        ("write max-num-seqs", {"max-num-seqss": None, "max-num-seqs": 8})
    ]


def test_the_options_of_the_image_outrank_the_table() -> None:
    flags, listed = {"calculate-kv-scales": True, "brand-new": 1}, {"brand-new", "max-num-seqs"}
    found = rules.check(rules.VllmRequest(flags), classify(DENSE_MODEL), versions.parse("0.20.0"), listed)
    (finding,) = (item for item in found if item.rule == "unknown-flag")
    assert finding.severity == "error" and "0.28.0" in finding.sentence


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
    ("model", "version", "ignored"),
    [
        ({"architectures": ["Qwen3NextForCausalLM"]}, "0.14.0", True),
        ({"architectures": ["Qwen3NextForCausalLM"]}, "0.15.0", False),
        ({"architectures": ["NemotronHForCausalLM"]}, "0.11.0", True),
        ({"architectures": ["NemotronHForCausalLM"]}, "0.14.0", False),
        (DENSE_MODEL, "0.11.0", False),
    ],
)
def test_prefix_caching_that_a_release_lacks_for_a_model_is_ignored(
    model: dict[str, Any], version: str, ignored: bool
) -> None:
    flags = {"enable-prefix-caching": True}
    assert ("ignored-flag" in check_flags(flags, model, version)) is ignored
    request = rules.VllmRequest(flags)
    settings = predict_effective_settings(request, classify(model), versions.parse(version))
    assert settings.prefix_caching is not ignored


@pytest.mark.parametrize(
    ("tag", "rule"),
    [
        (":v0.17.1", "cuda13-image"),
        (":v0.17.1-cu130", None),
        (":v0.20.0", None),
        (":v0.20.0-cu129", "cuda13-image"),
        (":cu129-nightly", "cuda13-image"),
        (":cu130-nightly", "frozen-nightly"),
        (":nightly", "moving-tag"),
        ("", "moving-tag"),
    ],
)
def test_image_tags_for_a_gb10(tag: str, rule: str | None) -> None:
    names = {"cuda13-image", "frozen-nightly", "moving-tag"}
    found = check_flags({}, DENSE_MODEL, None, image=f"vllm/vllm-openai{tag}")
    assert names & found.keys() == ({rule} if rule else set())


@pytest.mark.parametrize(("tag", "named"), [("v0.9.0", False), ("v0.13.0", False), ("v0.14.0", True)])
def test_a_cu130_tag_is_named_only_for_releases_that_have_one(tag: str, named: bool) -> None:
    finding = find_problems({}, DENSE_MODEL, None, image=f"vllm/vllm-openai:{tag}")["cuda13-image"]
    assert (f"{tag}-cu130" in finding.ways_out[0].text) is named


@pytest.mark.parametrize(
    ("version", "changes"),
    [("0.13.0", []), ("0.14.0", [{"default-chat-template-kwargs": {"enable_thinking": False}}])],
)
def test_a_thinking_model_gets_the_server_side_switch_from_0_14_on(version: str, changes: list[Any]) -> None:
    finding = find_problems({"reasoning-parser": "qwen3"}, HYBRID_MODEL, version)["reasoning-truncates-answers"]
    assert [way.changes for way in finding.ways_out] == changes


def test_lengths_with_units_are_numbers() -> None:
    flags = {**UNCHUNKED, "max-model-len": "32k", "max-num-batched-tokens": 4096}
    assert "unchunked-budget" in check_flags(flags, DENSE_MODEL, "0.32.0")
    assert "model-length" in check_flags({"max-model-len": "256K"}, DENSE_MODEL, "0.32.0")


def test_chunked_prefill_off_is_ignored_before_0_11_1() -> None:
    flags = {**UNCHUNKED, "max-num-batched-tokens": 1024}
    found = check_flags(flags, DENSE_MODEL, "0.11.0")
    assert found["ignored-flag"] == "warning" and "unchunked-budget" not in found
    assert check_flags(flags, DENSE_MODEL, "0.12.0")["unchunked-budget"] == "error"


@pytest.mark.parametrize(
    ("flags", "published", "refused"),
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
def test_an_unreachable_server_is_refused(flags: dict[str, Any], published: int | None, refused: bool) -> None:
    found = check_flags(flags, DENSE_MODEL, "0.32.0", published_port=published)
    assert found.get("out-of-reach") == ("error" if refused else None)


@pytest.mark.parametrize(
    ("flags", "texts"),
    [
        ({}, []),
        ({"safetensors-load-strategy": "lazy"}, []),
        ({"safetensors-load-strategy": "eager"}, ["twice the file's size"]),
        ({"load-format": "fastsafetensors"}, ["needs fastsafetensors in the image"]),
        ({"load-format": "dummy"}, ["random weights"]),
    ],
)
def test_weight_loading_options_with_extra_costs_are_reported(flags: dict[str, Any], texts: list[str]) -> None:
    case = Case(rules.VllmRequest(flags), classify(DENSE_MODEL), versions.parse("0.32.0"))
    findings = list(rules.RULES["weights-loading"].check(case))
    assert len(findings) == len(texts) and all(text in findings[0].sentence for text in texts)


@pytest.mark.parametrize(
    ("overrides", "reported"),
    [
        ({"text_config": {"num_experts_per_tok": 16}}, True),
        ('{"num_experts_per_tok": 4}', True),
        ({"num_experts_per_tok": 8}, False),
        ({"rope_theta": 1}, False),
        ("not json", False),
    ],
)
def test_experts_per_token_are_compared_with_the_model_config(overrides: Any, reported: bool) -> None:
    model = {**DENSE_MODEL, "text_config": {"num_experts_per_tok": 8}}
    assert ("experts-per-token" in check_flags({"hf-overrides": overrides}, model, "0.32.0")) is reported


def test_a_parser_among_the_model_files_is_named_until_it_is_loaded() -> None:
    pinned = {"/models/m": ["config.json", "sub/super_v3_reasoning_parser.py", "parser.py", "reasoning.md"]}
    assert "parser-of-the-model" in check_flags({}, DENSE_MODEL, "0.32.0", pinned_files=pinned)
    loaded = {"reasoning-parser-plugin": "/models/m/sub/super_v3_reasoning_parser.py"}
    assert "parser-of-the-model" not in check_flags(loaded, DENSE_MODEL, "0.32.0", pinned_files=pinned)


PREFIX = {"enable-prefix-caching": True}


def decide_chunked_prefill(flags: dict[str, Any], model: Any, version: str | None, when: Any = "refuse") -> Decision:
    return advice.decide_chunked_prefill(rules.VllmRequest(flags), model, versions.parse(version), "disabled", when)


@pytest.mark.parametrize("version", ["0.17.1", "0.28.0", "0.33.0", None])
@pytest.mark.parametrize("model", [DENSE_MODEL, HYBRID_MODEL], ids=["dense", "hybrid"])
def test_disabled_chunked_prefill_gives_flags_that_the_rules_accept(model: dict[str, Any], version: str | None) -> None:
    decided = decide_chunked_prefill({"max-model-len": 4096}, model, version)
    assert (decided.flags["enable-chunked-prefill"], decided.expected) == (False, "disabled")
    found = check_flags(dict(decided.flags), model, version)
    assert not {"prefix-caching-needs-chunked-prefill", "unchunked-budget"} & found.keys()


@pytest.mark.parametrize("version", ["0.17.1", "0.33.0", None])
def test_prefix_caching_on_a_hybrid_is_refused_with_both_remedies(version: str | None) -> None:
    finding = decide_chunked_prefill(PREFIX, HYBRID_MODEL, version).finding
    assert finding is not None and finding.severity == "error"
    assert [bool(way.changes) for way in finding.ways_out] == [True, False]


def test_a_conflict_can_be_reported_instead() -> None:
    decided = decide_chunked_prefill({**PREFIX, "enable-chunked-prefill": False}, HYBRID_MODEL, "0.32.0", "report")
    assert (decided.note, decided.expected, decided.flags) == ("on, required by prefix caching", "any", PREFIX)


def test_a_dense_model_may_have_prefix_caching_without_chunked_prefill() -> None:
    assert decide_chunked_prefill(PREFIX, DENSE_MODEL, "0.32.0").flags == {**PREFIX, "enable-chunked-prefill": False}


def test_an_engine_that_ignores_the_flag_cannot_disable_chunked_prefill() -> None:
    finding = decide_chunked_prefill({}, DENSE_MODEL, "0.11.0").finding
    assert finding is not None and "ignored" in finding.sentence
