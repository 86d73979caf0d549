"""Splits of models over several hosts: invalid ones with their alternatives, and all published models."""

import json
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from sparkwright.app.findings import format_rule
from sparkwright.engines.model.architecture import classify
from sparkwright.engines.parallel import Split
from sparkwright.engines.vllm import advice, parallel, rules, versions

CONFIGS = Path(__file__).parents[2] / "data/configs"
RELEASE = Version("0.32.0")


def build_model(attention: int = 32, kv: int = 8, layers: int = 32, **config: Any) -> dict[str, Any]:
    """Return the config of a model with these numbers of heads and layers."""
    heads = {"num_attention_heads": attention, "num_key_value_heads": kv}
    architecture = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    return {**architecture, "num_hidden_layers": layers, **heads, **config}


def check_split(split: Split, model: dict[str, Any], version: Version | None = RELEASE, **flags: Any) -> dict[str, str]:
    return {item.rule: item.severity for item in parallel.check(split, flags, model, version)}


def test_the_explanation_of_parallel() -> None:
    explanation = rules.RULES.explain_rule("parallel")
    assert explanation is not None
    paragraphs = format_rule(explanation).split("\n\n")
    starts = ("`parallel: {tensor: 2}`", "`parallel: {pipeline: 2}`", "Two servers behind a gate")
    assert all(map(str.startswith, paragraphs[1:4], starts))
    assert "69.0 tok/s" in paragraphs[1] and "568" in paragraphs[3]


@pytest.mark.parametrize(
    ("tensor", "attention", "kv", "refused"),
    [
        (2, 32, 8, False),
        (3, 24, 6, False),
        (4, 32, 2, False),  # each of 2 KV heads is copied to 2 hosts
        (3, 32, 8, True),
        (3, 24, 2, True),  # 2 KV heads can neither be divided by 3 nor copied evenly
        (6, 24, 4, True),
        (2, 9, 3, True),
    ],
)
def test_heads_are_divided_or_kv_heads_copied(tensor: int, attention: int, kv: int, refused: bool) -> None:
    findings = check_split(Split(tensor=tensor), build_model(attention, kv))
    assert findings == ({"parallel-heads": "error"} if refused else {})


@pytest.mark.parametrize("version", [Version("0.33.0"), None])
def test_kv_heads_in_later_releases_are_uncertain(version: Version | None) -> None:
    """A development build served a model with 24 attention and 2 KV heads on three Sparks."""
    assert check_split(Split(tensor=3), build_model(24, 2), version) == {"parallel-heads": "warning"}
    assert check_split(Split(tensor=3), build_model(), version) == {"parallel-heads": "error"}


def test_latent_attention_has_one_kv_head_on_every_host() -> None:
    assert check_split(Split(tensor=3), build_model(24, 2, kv_lora_rank=512)) == {}


@pytest.mark.parametrize(
    "keys",
    [
        {"linear_num_value_heads": 32, "linear_num_key_heads": 2, "linear_conv_kernel_dim": 4},
        {"mamba_num_heads": 30, "ssm_state_size": 128, "n_groups": 4},
        {"mamba_n_heads": 32, "mamba_n_groups": 2},
        {"linear_attn_config": {"num_heads": 6}},
    ],
)
def test_recurrent_heads_are_never_copied(keys: dict[str, Any]) -> None:
    model = advice.relevant_config(build_model(32, 4, **keys))
    assert check_split(Split(tensor=4), model) == {"parallel-heads": "error"}
    assert check_split(Split(tensor=1, pipeline=4), model) == {}


def test_one_mamba_group_is_copied() -> None:
    assert check_split(Split(tensor=4), build_model(32, 4, mamba_n_heads=32, mamba_n_groups=1)) == {}


@pytest.mark.parametrize(
    ("split", "model", "version", "position", "remedy"),
    [
        (Split(tensor=3), build_model(), RELEASE, 0, "write `parallel: {pipeline: 3}`"),
        (Split(tensor=4), build_model(10, 10), RELEASE, 0, "write `parallel: {tensor: 2, pipeline: 2}`"),
        (Split(pipeline=2), build_model(), Version("0.19.1"), -1, "write `parallel: {tensor: 2}`"),
        (Split(tensor=3), build_model(layers=2), RELEASE, 0, "serve it on a different number of hosts, or on each host separately"),
    ],
)  # fmt: skip
def test_the_other_split_is_offered(split: Split, model: Any, version: Version, position: int, remedy: str) -> None:
    (finding,) = parallel.check(split, {}, model, version)
    assert finding.ways_out[position].text == remedy


@pytest.mark.parametrize(
    ("split", "version", "rule"),
    [
        (Split(tensor=2), "0.16.0", "parallel-release"),
        (Split(tensor=2), "0.17.1", None),
        (Split(pipeline=2), "0.18.0", "parallel-pipeline-release"),
        (Split(pipeline=2), "0.20.0", None),
        (Split(tensor=2), "0.18.0", None),
        (Split(tensor=2), "0.29.0+nv26.09", None),
        (Split(pipeline=2), None, None),
        (Split(tensor=2), "0.1.dev20073+g8e685d198", None),  # built without tags: the release is unknown
    ],
)
def test_splits_exist_in_some_releases(split: Split, version: str | None, rule: str | None) -> None:
    assert list(check_split(split, build_model(), versions.parse(version))) == ([rule] if rule else [])


def test_each_host_needs_a_layer() -> None:
    assert check_split(Split(pipeline=4), build_model(layers=3)) == {"parallel-layers": "error"}
    assert check_split(Split(pipeline=3), build_model(layers=3)) == {}


def test_a_model_without_pipeline_support_is_an_error_only_in_a_known_release() -> None:
    model = build_model(32, 32, architectures=["Zamba2ForCausalLM"])
    assert check_split(Split(pipeline=2), model) == {"parallel-pipeline-model": "error"}
    assert check_split(Split(pipeline=2), model, Version("0.33.0")) == {"parallel-pipeline-model": "warning"}
    assert check_split(Split(tensor=2), model) == {}


def test_ray_is_refused_in_any_spelling() -> None:
    (finding,) = parallel.check(Split(tensor=2), {"distributed_executor_backend": "ray"}, build_model(), RELEASE)
    assert finding.severity == "error" and "have not included Ray since 0.18.0" in finding.sentence
    multiprocessing: dict[str, Any] = {"distributed-executor-backend": "mp"}
    assert check_split(Split(tensor=2), build_model(), **multiprocessing) == {}
    single_process: dict[str, Any] = {"distributed-executor-backend": "uni"}
    assert "parallel-backend" in check_split(Split(tensor=2), build_model(), **single_process)


def test_experts_are_distributed_by_tensor_parallelism_only() -> None:
    assert check_split(Split(pipeline=2), build_model(), ep=True) == {"parallel-experts": "warning"}
    assert check_split(Split(tensor=2), build_model(), ep=True) == {}


def test_flags_that_multiply_the_ranks_are_refused() -> None:
    assert check_split(Split(tensor=2), build_model(), dp=2) == {"parallel-multiplied": "error"}
    assert check_split(Split(tensor=2), build_model(), dp=1) == {}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_published_models_are_split_over_two_hosts_and_the_lock_keeps_the_decisive_keys(path: Path) -> None:
    complete = json.loads(path.read_text())
    locked = json.loads(json.dumps(advice.relevant_config(complete)))
    assert check_split(Split(tensor=2), complete) == {}
    for split in (Split(tensor=3), Split(tensor=8), Split(pipeline=3), Split(2, 2)):
        assert parallel.check(split, {}, locked, RELEASE) == parallel.check(split, {}, complete, RELEASE)


def check_single_host(flags: dict[str, Any], **request: Any) -> dict[str, str]:
    findings = rules.check(rules.VllmRequest(flags, **request), classify(build_model()), RELEASE)
    return {finding.rule: finding.sentence for finding in findings}


def test_two_gpus_on_one_host_need_a_cluster() -> None:
    sentence = "tensor-parallel-size: 2 needs 2 GPUs, and a GB10 has one: use a cluster."
    assert check_single_host({"tp": 2})["parallel"] == sentence
    assert "need 4 GPUs" in check_single_host({"tp": 2, "pp": 2})["parallel"]
    assert "parallel" not in check_single_host({"tp": 1, "pp": 1})


def test_members_and_other_platforms_are_not_limited_to_one_gpu() -> None:
    assert "parallel" not in check_single_host({"tp": 2, "nnodes": 2, "node-rank": 0})
    assert "parallel" not in check_single_host({"tp": 2}, platform="ascend")


def test_a_fixed_gid_index_is_a_warning() -> None:
    assert "gid-index" in check_single_host({}, env={"NCCL_IB_GID_INDEX": ""})
