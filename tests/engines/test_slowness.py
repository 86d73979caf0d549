"""Causes of a slow server: each is found with its evidence, and none is excluded without evidence."""

from typing import Any

import pytest

from sparkwright.engines import engine as engines
from sparkwright.engines.log.reader import read_log
from sparkwright.engines.slowness import Cause, SlownessEvidence, find_causes, list_likely_causes
from sparkwright.units import GIB

NO_GRAPHS = {"cuda_graphs": False, "evidence": {"cuda_graphs": "cudagraph_mode=NONE"}}
UNQUANTIZED = {"quantization": "none", "evidence": {"quantization": "quantization=None"}}
FULL_MEMORY = {"MemAvailable": GIB, "MemTotal": 120 * GIB}
THINKING: dict[str, Any] = {"thinking_tokens": 30, "answer_tokens": 32}


def find_verdicts(**fields: Any) -> dict[str, str]:
    return {cause.name: cause.verdict for cause in find_causes(SlownessEvidence(**fields))}


@pytest.mark.parametrize(
    ("evidence", "name"),
    [
        ({"gpu_degraded": True, "gpu_state": "SM clock 851 MHz"}, "the GPU is held at a low clock (power fault)"),
        ({"active_requests": 2.0}, "other requests share the engine"),
        ({"ollama_models": [("qwen3:32b", 20 * GIB)]}, "Ollama holds a model in the shared memory"),
        ({"log": NO_GRAPHS}, "eager mode: no CUDA graphs"),
        ({"log": {"warnings": ["Triton kernel JIT compilation during inference: x"]}}, "kernels compile while requests wait"),
        ({"log": UNQUANTIZED, "model": "Qwen/Qwen3.5-35B-A3B-FP8"}, "BF16 weights although the model's name says FP8"),
        ({"log": {"block_size": 2096}, "budget": 2048}, "a block of the KV cache is larger than max-num-batched-tokens"),
        (THINKING, "reasoning tokens precede the answer"),
        ({"meminfo": FULL_MEMORY}, "the memory is full"),
        ({"accepted_per_draft": 0.2}, "few draft tokens are accepted"),
        ({"kv_cache_share": 0.99}, "the KV cache is full"),
    ],
)  # fmt: skip
def test_an_observed_cause_is_found_with_its_evidence(evidence: dict[str, Any], name: str) -> None:
    first = find_causes(SlownessEvidence(**evidence))[0]
    assert (first.name, first.verdict) == (name, "found")
    assert first.evidence and first.fix


def test_missing_evidence_is_unknown_and_not_excluded() -> None:
    assert not {"excluded", "found"} & set(find_verdicts().values())


def test_chunked_prefill_is_excluded() -> None:
    causes = find_verdicts(
        log={"chunked_prefill": True, "evidence": {"chunked_prefill": "enable_chunked_prefill=True"}}
    )
    assert causes["chunked prefill"] == "excluded"


def test_a_very_slow_server_has_more_possible_causes() -> None:
    slow, fast = find_verdicts(share=0.12), find_verdicts(share=0.98)
    assert slow["a stale compile cache"] == "possible"
    assert "a stale compile cache" not in fast


def test_an_image_of_nvidia_is_advised_with_its_entrypoint() -> None:
    """Without it, the entrypoint of an NGC image runs the flags as a command."""
    fixes = {cause.name: cause.fix for cause in find_causes(SlownessEvidence(share=0.12))}
    assert "NGC with `container.entrypoint: [vllm, serve]`" in fixes["an image without kernels for this GPU (sm_121)"]


def test_slow_tokens_outrank_late_answers() -> None:
    late = "reasoning tokens precede the answer"
    names = [cause.name for cause in find_causes(SlownessEvidence(share=0.12, **THINKING))]
    assert names.index("a stale compile cache") < names.index(late)
    assert find_causes(SlownessEvidence(share=1.0, **THINKING))[0].name == late


def test_excluded_causes_are_not_listed() -> None:
    assert not any(
        item.verdict == "excluded"
        for item in list_likely_causes(SlownessEvidence(active_requests=0.0, ollama_models=[]))
    )


@pytest.mark.parametrize(
    ("name", "evidence", "fix"),
    [
        ("llama_cpp", {"meminfo": FULL_MEMORY}, "lower ctx-size, or stop"),
        ("sglang", {"meminfo": FULL_MEMORY}, "lower mem-fraction-static, or stop"),
        ("openai", {"meminfo": FULL_MEMORY}, "stop other processes"),
        ("sglang", {"kv_cache_share": 0.99}, "lower max-running-requests or context-length"),
        ("llama_cpp", THINKING, 'chat-template-kwargs: {"enable_thinking": false}'),
        ("sglang", THINKING, "in each request"),
    ],
)
def test_a_fix_names_the_flags_of_the_engine(name: str, evidence: dict[str, Any], fix: str) -> None:
    first = find_causes(SlownessEvidence(engine=engines.get_engine(name), **evidence))[0]
    assert fix in first.fix
    assert "gpu-memory-utilization" not in first.fix


@pytest.mark.parametrize("name", ["llama_cpp", "sglang", "openai"])
def test_vllm_causes_are_not_reported_for_other_engines(name: str) -> None:
    causes = find_verdicts(engine=engines.get_engine(name), share=0.1, log={"warnings": [], "cuda_graphs": None})
    assert not {"eager mode: no CUDA graphs", "a stale compile cache"} & set(causes)


FP4 = (
    "(EngineCore pid=16) WARNING 08-20 10:01:00 [marlin_utils_fp4.py:226] Your GPU does not have native support for FP4 "
    "computation but FP4 quantization is being used. Weight-only FP4 compression will be used leveraging the Marlin kernel."
)


def test_weight_only_kernels_are_named_without_advising_an_older_image() -> None:
    log = {"warnings": [FP4], "version": "0.32.0"}
    causes = {cause.name: cause for cause in find_causes(SlownessEvidence(share=0.35, is_slow=True, log=log))}
    marlin = next(cause for name, cause in causes.items() if "weight-only kernel (Marlin)" in name)
    assert marlin.verdict == "found"
    assert "v0.20.0" not in " ".join(cause.fix for cause in causes.values())


@pytest.mark.parametrize(
    ("busy", "preempted", "verdict"),
    [(0.0, 0.0, "excluded"), (0.0, 3.0, "found"), (4.0, 0.0, "found"), (None, None, "found")],
)
def test_a_cache_of_reusable_prefixes_is_not_full(busy: float | None, preempted: float | None, verdict: str) -> None:
    causes = find_verdicts(share=0.6, is_slow=True, kv_cache_share=0.96, active_requests=busy, preemptions=preempted)
    assert causes["the KV cache is full"] == verdict


LLAMA = engines.get_engine("llama_cpp")
LLAMA_LOG = """
0.00.000.100 I init: build_info: b11549-7e4c0a9
0.05.000.000 I load_tensors: offloaded 20/49 layers to GPU
0.05.000.000 I load_tensors:   CPU_Mapped model buffer size =  9000.11 MiB
0.05.000.000 I load_tensors:        CUDA0 model buffer size =  5000.50 MiB
0.06.000.000 I llama_context: flash_attn    = disabled
0.06.000.000 I llama_kv_cache: size = 4096.00 MiB (131072 cells, 48 layers, 1/1 seqs), K (q8_0): 2048.00 MiB, V (f16): 2048.00 MiB
0.09.000.000 I llama_server: listening on http://0.0.0.0:8080
"""


def find_llama_causes(text: str) -> list[Cause]:
    """Return the causes of a slow llama.cpp on a GPU with this log."""
    log = read_log(text, LLAMA.log).to_json()
    return find_causes(SlownessEvidence(share=0.05, is_slow=True, engine=LLAMA, log=log, on_gpu=True))


def test_causes_are_found_in_the_log_of_llama_cpp() -> None:
    causes = [cause for cause in find_llama_causes(LLAMA_LOG) if cause.verdict == "found"]
    assert [(cause.name, cause.evidence.partition("; ")[2], cause.fix) for cause in causes] == [
        ("29 of 49 layers are on the CPU", "8.8 of 13.7 GiB of its weights", "n-gpu-layers: all"),
        ("its K and V caches have different types", "", "the same type for cache-type-k and cache-type-v"),
        ("flash attention is off", "", "flash-attn: true"),
    ]


@pytest.mark.parametrize("offloaded", ["49/49", "50/49"])
def test_all_layers_on_the_gpu_exclude_layers_on_the_cpu(offloaded: str) -> None:
    causes = find_llama_causes(LLAMA_LOG.replace("20/49", offloaded))
    assert [(cause.name, cause.verdict) for cause in causes if "layers" in cause.name] == [
        ("layers on the CPU", "excluded")
    ]
