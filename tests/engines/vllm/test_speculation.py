"""Speculative decoding: the rules, compared with a real vLLM, its releases and the configs of models."""

import json
import operator
import re
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.advice import ServerRequest
from sparkwright.engines.findings import Finding, Rule
from sparkwright.engines.llama_cpp import flags as llama_flags
from sparkwright.engines.llama_cpp import rules as llama_rules
from sparkwright.engines.model.architecture import classify, relevant_config
from sparkwright.engines.sglang import flags as sglang_flags
from sparkwright.engines.sglang import rules as sglang_rules
from sparkwright.engines.vllm import rules, versions
from sparkwright.engines.vllm.rules.speculation import MODEL_WITH_MTP
from tests.engines.configs import load_config

DATA = Path(__file__).parents[2] / "data/vllm-0.32.0/speculative-config.json"
ROWS: list[dict[str, Any]] = json.loads(DATA.read_text())
FLAG = "speculative-config"


def find_by_vllm(flags: dict[str, Any], version: str | None, model: dict[str, Any], **env: str) -> list[Finding]:
    return rules.check(rules.VllmRequest(flags, env=env), classify(model), versions.parse(version))


def find_speculation(config: Any, version: str | None = "0.32.0", model: Any = MODEL_WITH_MTP) -> list[Finding]:
    flags = config if isinstance(config, dict) and FLAG in config else {FLAG: config}
    return [finding for finding in find_by_vllm(flags, version, model) if finding.flag == FLAG]


@pytest.mark.parametrize("row", ROWS, ids=[json.dumps(row["config"]) for row in ROWS])
def test_the_rule_refuses_what_a_real_engine_refuses(row: dict[str, Any]) -> None:
    findings = [finding for finding in find_speculation(row["config"]) if finding.rule == "speculation"]
    refusals = [finding.sentence for finding in findings if finding.severity == "error"]
    assert bool(refusals) == bool(row["refusal"]), (row["refusal"], refusals)


@pytest.mark.parametrize(
    ("config", "version", "severity", "text"),
    [
        ({"method": "dflash", "model": "/d", "num_speculative_tokens": 8}, "0.19.1", "error", "was added in 0.20.0"),
        ({"method": "dflash", "model": "/d", "num_speculative_tokens": 8}, None, "warning", "was added in 0.20.0"),
        ({"method": "medusa", "model": "/d", "num_speculative_tokens": 3}, "0.33.0", "error", "removed in 0.33.0"),
        ({"method": "mtp", "num_speculative_tokens": 1, "kv_cache_dtype": "fp8"}, "0.25.1", "error", "was added in 0.26.0"),
        ({"method": "tomorrow", "num_speculative_tokens": 1}, "0.40.0", "warning", "tomorrow is not a method"),
        ('{"method":"mtp","num_speculative_tokens":0}', "0.32.0", "error", "at least 1"),
        ({f"{FLAG}": {"method": "mtp"}, f"{FLAG}.num_speculative_tokens": "many"}, "0.32.0", "error", "whole number"),
    ],
)  # fmt: skip
def test_methods_and_keys_exist_in_some_releases(config: Any, version: str | None, severity: str, text: str) -> None:
    (finding,) = find_speculation(config, version=version)
    assert (finding.severity, text in finding.sentence) == (severity, True), finding.sentence


def test_current_method_names_are_offered_for_an_unknown_one() -> None:
    (finding,) = find_speculation({"method": "tomorrow", "num_speculative_tokens": 1})
    names = finding.ways_out[0].text.removeprefix("choose one of ").split(", ")
    assert "mtp" in names and "eagle3" in names and "deepseek_mtp" not in names


def test_a_typo_gets_the_nearest_name() -> None:
    (method,) = find_speculation({"method": "eagel3", "model": "/d", "num_speculative_tokens": 3})
    assert method.ways_out[0].text == "write method: eagle3"
    (key,) = find_speculation({"method": "ngram", "num_spec_tokens": 3})
    assert key.ways_out[0].changes == {FLAG: {"method": "ngram", "num_speculative_tokens": 3}}


@pytest.mark.parametrize(
    ("layers", "tokens", "refused"), [(3, 1, False), (3, 3, False), (3, 4, True), (3, 6, False), (1, 4, False)]
)
def test_tokens_are_a_multiple_of_the_prediction_layers(layers: int, tokens: int, refused: bool) -> None:
    text_config = {**MODEL_WITH_MTP["text_config"], "mtp_num_hidden_layers": layers}
    model = {**MODEL_WITH_MTP, "text_config": text_config}
    assert bool(find_speculation({"method": "mtp", "num_speculative_tokens": tokens}, model=model)) is refused


def test_a_four_bit_model_with_an_unquantised_drafter_is_accepted() -> None:
    config = {"method": "mtp", "num_speculative_tokens": 1}
    model = relevant_config(load_config("qwen3.6-27b-nvfp4"))
    assert find_speculation(config, model=model) == []
    quantised = {**model, "quantization_config": {**model["quantization_config"], "ignore": ["lm_head"]}}
    (finding,) = find_speculation(config, model=relevant_config(quantised))
    assert (finding.rule, finding.severity) == ("quantised-drafter", "warning")
    # an older lock lacks the list
    assert find_speculation(config, model={**model, "quantization_config": {"quant_method": "modelopt"}}) == []


def format_findings(rule: Rule[Any, Any], case: Any) -> str:
    """Return the only finding of a rule as text; "" if there is none."""
    return "".join(f"{finding.severity}: {finding.sentence}" for finding in rule.check(case))


@pytest.mark.parametrize(
    ("flags", "version", "text"),
    [
        ({"speculative-algorithm": "EAGLE3", "speculative-draft-model-path": "/d"}, "0.5.9", ""),
        ({"speculative-algorithm": "EAGEL3"}, "0.5.9", "error: speculative-algorithm EAGEL3 is not an SGLang algorithm"),
        ({"speculative-algorithm": "OURS"}, "0.5.23", "warning: speculative-algorithm OURS is not an SGLang algorithm"),
        ({"speculative-algorithm": "eagle"}, "0.5.23", ""),
        ({"speculative-algorithm": "eagle"}, "0.5.9", "error: speculative-algorithm eagle is not an SGLang algorithm"),
        ({"speculative-algorithm": "DFLASH", "speculative-draft-model-path": "/d"}, "0.5.9", "error: .*0.5.11 and later"),
        ({"speculative-algorithm": "DFLASH", "speculative-draft-model-path": "/d"}, "0.5.10", "warning: .*0.5.11"),
        ({"speculative-algorithm": "DFLASH", "speculative-draft-model-path": "/d"}, None, "warning: .*0.5.11"),
        ({"speculative-algorithm": "DFLASH"}, "0.5.23", "error: .* needs speculative-draft-model-path"),
        ({"speculative-algorithm": "NEXTN", "speculative-eagle-topk": 1}, "0.5.23", "error: .*AssertionError"),
        ({"speculative-num-steps": 3}, "0.5.23", "warning: speculative-num-steps has no effect"),
    ],
)  # fmt: skip
def test_sglang_algorithms_exist_in_some_releases(flags: dict[str, Any], version: str | None, text: str) -> None:
    case = sglang_rules.Case(ServerRequest(sglang_flags.normalize(flags)), version)
    finding = format_findings(sglang_rules.RULES["speculation"], case)
    assert re.match(text, finding) if text else not finding, finding


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"spec-type": "draft-mtp"}, ""),
        ({"spec-type": "ngram-mod,draft-mtp"}, ""),
        ({"spec-type": "draft-simple", "md": "/d.gguf"}, ""),
        ({"spec-type": "draft-eagle3"}, "error: spec-type draft-eagle3 needs a drafter"),
        ({"spec-type": "mtp"}, "error: spec-type mtp is not a type"),
        ({"spec-draft-n-min": 8, "spec-draft-n-max": 2}, "warning: spec-draft-n-min 8 is above"),
    ],
)
def test_llama_cpp_types_are_checked(flags: dict[str, Any], text: str) -> None:
    case = llama_rules.Case(ServerRequest(llama_flags.normalize(flags)), f"b{llama_flags.NEWEST_BUILD}")
    finding = format_findings(llama_rules.RULES["speculation"], case)
    assert finding.startswith(text) if text else not finding, finding


@pytest.mark.parametrize(
    ("flags", "models"),
    [
        ({FLAG: '{"method":"dflash","model":"org/draft","num_speculative_tokens":8}'}, ["org/draft"]),
        ({f"{FLAG}.model": "org/draft", f"{FLAG}.method": "dflash"}, ["org/draft"]),
        ({FLAG: {"model": "ngram", "num_speculative_tokens": 2}}, []),
        ({FLAG: {"method": "dflash", "model": "/models/draft", "num_speculative_tokens": 8}}, []),
        ({"lora-modules": ["sql=org/sql-lora", "sum=/models/sum"]}, ["org/sql-lora"]),
        ({"lora-modules": [{"name": "sql", "path": "org/sql-lora"}]}, ["org/sql-lora"]),
        ({"lora-modules": '{"name": "sql", "path": "org/sql"}'}, ["org/sql"]),
    ],
)
def test_second_models_that_would_be_downloaded_are_refused(flags: dict[str, Any], models: list[str]) -> None:
    findings = find_by_vllm(flags, "0.32.0", MODEL_WITH_MTP)
    sentences = [finding.sentence for finding in findings if finding.rule == "downloads"]
    assert len(sentences) == len(models) and all(map(operator.contains, sentences, models))


@pytest.mark.parametrize(
    ("env", "severities"),
    [
        ({}, []),
        ({"HF_HUB_OFFLINE": "1"}, ["warning"]),
        ({"HF_HUB_OFFLINE": "1", "TIKTOKEN_ENCODINGS_BASE": "/models/encodings"}, []),
    ],
)
def test_the_vocabulary_of_gpt_oss_is_reported_on_an_offline_host(env: dict[str, str], severities: list[str]) -> None:
    findings = find_by_vllm({}, "0.32.0", load_config("gpt-oss-20b"), **env)
    assert [finding.severity for finding in findings if finding.rule == "downloads"] == severities
