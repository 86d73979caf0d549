"""Architectures of published config.json files: recurrent or dense, number of layers, and evidence."""

import dataclasses
import json
from typing import Any

import pytest

from sparkwright.engines.model import architecture_tables as tables
from sparkwright.engines.model.architecture import (
    Architecture,
    classify,
    has_recurrent_substring,
    relevant_config,
)
from sparkwright.engines.vllm.prediction import block_size
from tests.engines.configs import DATA, EXPECTED_ARCHITECTURES, NAMES, load_config

MISSED_RECURRENT = (
    "qwen3-next-80b-a3b-instruct", "kimi-linear-48b-a3b-instruct", "kimi-k3", "glm-5.3-flash", "lfm2-1.2b",
    "lfm2-8b-a1b", "lfm2.5-1.2b-thinking-codex-autoround", "minimax-m1", "minimax-vl-01", "ling-3.0-tiny",
    "ring-mini-linear-2.0-4bit-mlx", "olmo-hybrid-7b-tf5", "rwkv7-g1-2.9b", "fla-gla_7b", "fla-samba_1b",
)  # fmt: skip
MISTAKEN_DENSE = ("granite-4-8b-dense-hybrid", "granite-4.0-micro-tf5", "made-dense-path-named-mamba")
DRAFT_MODELS = ("draft-dflash-qwen3.5-35b-a3b", "draft-dspark-kimi-k3", "draft-eagle3-qwen3-next-80b-a3b")


@pytest.mark.parametrize(("name", "kind", "mechanism", "recurrent", "layers"), EXPECTED_ARCHITECTURES, ids=NAMES)
def test_config_classification(name: str, kind: str, mechanism: str, recurrent: int | None, layers: int | None) -> None:
    architecture = classify(load_config(name))
    assert (architecture.kind, architecture.mechanism) == (kind, mechanism)
    assert (architecture.recurrent_layers, architecture.layers) == (recurrent, layers)
    assert architecture.evidence


def test_every_config_has_an_expectation_and_a_source() -> None:
    files = {path.stem for path in DATA.glob("*.json")}
    assert files == set(NAMES)
    sources = (DATA / "SOURCES.md").read_text()
    assert [name for name in NAMES if f"| {name}.json |" not in sources] == []


def test_the_substring_rule_is_wrong_about_these_models_only() -> None:
    mistaken = {
        name
        for name, kind, *_ in EXPECTED_ARCHITECTURES
        if kind != "unknown" and has_recurrent_substring(load_config(name)) != (kind != "dense")
    }
    assert mistaken == {*MISSED_RECURRENT, *MISTAKEN_DENSE}


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("qwen3.5-35b-a3b", "text_config.layer_types"),
        ("kimi-k3", "text_config.linear_attn_config.kda_layers"),
        ("nemotron-3-nano-omni-30b-a3b", "llm_config.hybrid_override_pattern"),
        ("minimax-vl-01", "text_config.attn_type_list"),
        ("nvidia-nemotron-3.5-lightning-30b-a3b-nvfp4", "layers_block_type"),
        ("recurrentgemma-2b", "_block_types"),
        ("qwen3-next-80b-a3b-instruct", "linear_conv_kernel_dim"),
        ("jamba-1.5-mini", "mamba_d_state"),
        ("rwkv7-g1-2.9b", "model_type"),
        ("granite-4-8b-dense-hybrid", "layer_types"),
        ("bart-base", "is_encoder_decoder"),
        ("llama-3.1-8b-instruct", "architectures"),
        ("made-unknown-auto-map", "auto_map"),
    ],
)
def test_the_decisive_evidence_comes_first(name: str, path: str) -> None:
    assert classify(load_config(name)).evidence[0].path == path


def test_a_wrapper_is_classified_by_its_text_config() -> None:
    architecture = classify(load_config("qwen3.5-35b-a3b"))
    assert architecture.text_config["model_type"] == "qwen3_5_moe_text"
    assert architecture.max_position_embeddings == 262144
    assert (architecture.name, architecture.model_type) == ("Qwen3_5MoeForConditionalGeneration", "qwen3_5_moe")


def test_a_nested_language_model_is_found() -> None:
    inner = {"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2}
    nested = {"text_config": inner, "audio_config": {}}
    architecture = classify({"architectures": ["NewOmni"], "thinker_config": nested})
    assert (architecture.kind, architecture.recurrent_layers) == ("recurrent", 2)
    assert architecture.evidence[0].path == "thinker_config.text_config.layer_types"


@pytest.mark.parametrize("name", DRAFT_MODELS)
def test_a_draft_model_is_recognized(name: str) -> None:
    assert "a draft" in classify(load_config(name)).evidence[0].detail


@pytest.mark.parametrize("name", ["Qwen3_5MoeMTP", "DeepSeekMTPModel", "EagleLlamaForCausalLM", "MedusaModel"])
def test_a_draft_model_with_the_keys_of_its_target_is_unknown(name: str) -> None:
    assert classify({**load_config("qwen3.5-35b-a3b"), "architectures": [name]}).kind == "unknown"


def test_a_speculator_without_a_known_name_is_a_draft_model() -> None:
    architecture = classify({"speculators_model_type": "dspark", "transformer_layer_config": {"num_hidden_layers": 5}})
    assert (architecture.kind, architecture.evidence[0].path) == ("unknown", "speculators_model_type")


def test_a_vision_model_named_eagle_is_not_a_draft_model() -> None:
    assert tables.DRAFT_NAME_PATTERN.search("Eagle2_5_VLForConditionalGeneration") is None


def test_layer_types_outrank_name_type_and_keys() -> None:
    model_config = {**load_config("granite-4.0-h-1b"), "layer_types": ["attention"] * 40}
    assert classify(model_config).kind == "dense"
    assert classify({**model_config, "layer_types": ["attention"] * 39 + ["mamba"]}).recurrent_layers == 1


def test_an_unknown_layer_type_decides_nothing() -> None:
    model_config = {"architectures": ["LlamaForCausalLM"], "layer_types": ["full_attention", "hyper_attention"]}
    assert classify(model_config).evidence[0].path == "architectures"


def test_a_state_dtype_alone_does_not_make_a_model_recurrent() -> None:
    assert classify({"architectures": ["LlamaForCausalLM"], "mamba_ssm_dtype": "float32"}).kind == "dense"


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 32768, "seq_length": 8192}, 8192),
        ({"max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        ({"n_positions": 1024}, 1024),
        ({"max_position_embeddings": "long"}, None),
        ({}, None),
    ],
)
def test_the_longest_sequence_is_derived_like_the_engine_does(config: dict[str, Any], length: int | None) -> None:
    assert classify(config).max_position_embeddings == length


@pytest.mark.parametrize("name", NAMES)
def test_the_relevant_config_gives_the_same_result_as_the_complete_config(name: str) -> None:
    complete = load_config(name)
    small = json.loads(json.dumps(relevant_config(complete)))
    assert drop_text_config(classify(small)) == drop_text_config(classify(complete))
    for dtype in ("auto", "bfloat16", "fp8"):
        assert block_size(small, dtype) == block_size(complete, dtype)
    assert relevant_config(small) == small


def test_the_relevant_config_leaves_out_the_rest() -> None:
    small = relevant_config(load_config("qwen3.6-27b-nvfp4"))
    assert set(small) == {"architectures", "model_type", "quantization_config", "text_config"}
    assert set(small["quantization_config"]) == {"quant_method", "kv_cache_scheme", "ignore"}
    assert all("mtp" in name for name in small["quantization_config"]["ignore"])  # hundreds of others are left out
    assert "rope_parameters" not in small["text_config"]


def drop_text_config(architecture: Architecture) -> Architecture:
    return dataclasses.replace(architecture, text_config={})


def classify_layers(name: str, layer_types: list[str], **config: Any) -> Architecture:
    return classify(
        {"architectures": [name], "num_hidden_layers": len(layer_types), "layer_types": layer_types, **config}
    )


def test_the_registry_of_vllm_outranks_hybrid_layer_types() -> None:
    architecture = classify_layers("InklingForCausalLM", ["hybrid", "hybrid_sliding"] * 4)
    assert (architecture.kind, architecture.mechanism, architecture.recurrent_layers) == ("dense", "", 0)
    inner = {"layer_types": ["linear_attention"]}
    wrapped = {"architectures": ["InklingForConditionalGeneration"], "text_config": inner}
    assert classify(wrapped).kind == "dense"
    evidence = classify(wrapped).evidence[0]
    assert evidence.path == "architectures" and "only attention in vLLM's registry" in evidence.detail
    assert "text_config.layer_types: linear_attention" in evidence.detail


def test_a_registered_hybrid_with_recurrent_layers_only_is_recurrent() -> None:
    architecture = classify_layers("GraniteMoeHybridForCausalLM", ["mamba"] * 8, mamba_n_heads=4)
    assert (architecture.kind, architecture.recurrent_layers, architecture.layers) == ("recurrent", 8, 8)
    assert "a hybrid in vLLM's registry" in architecture.evidence[0].detail
    sliding = classify_layers("Qwen3NextForCausalLM", ["sliding_attention"] * 8)
    assert sliding.kind == "recurrent", "vLLM exempts attention and full_attention only"


def test_hybrid_layer_types_of_an_unknown_architecture_prove_nothing() -> None:
    assert classify_layers("UnknownModel", ["hybrid", "full_attention"] * 4).kind == "unknown"
    assert classify_layers("UnknownModel", ["hybrid", "full_attention"] * 4, mamba_d_state=16).kind == "recurrent"


def test_every_architecture_matches_the_registry_of_vllm() -> None:
    kinds = {"hybrid": "recurrent", "attention_free": "attention_free", "attention": "dense"}
    registry = json.loads((DATA.parent / "vllm-0.32.0/registry.json").read_text())
    # Terratorch is not a language model
    names = [name for name in registry if not tables.DRAFT_NAME_PATTERN.search(name) and name != "Terratorch"]
    assert len(names) > 300
    classified = {name: classify({"architectures": [name]}).kind for name in names}
    assert {name: kind for name, kind in classified.items() if kind != kinds[registry[name]]} == {}
