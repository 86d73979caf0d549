"""Why a server is slow: each cause is found where it is seen, and nothing is excluded unseen."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.engines import engine as engines
from sparkwright.engines.slowness.causes import Seen, causes, likely
from sparkwright.units import GIB

GRAPHS = {"cuda_graphs": "cudagraph_mode=NONE"}


def verdicts(**seen: Any) -> dict[str, str]:
    return {one.name: one.verdict for one in causes(Seen(**seen))}


@pytest.mark.parametrize(
    ("seen", "name"),
    [
        ({"gpu_degraded": True, "gpu": "SM clock 851 MHz"}, "the GPU is held at a low clock (power fault)"),
        ({"busy": 2.0}, "other requests share the engine"),
        ({"ollama": [("qwen3:32b", 20 * GIB)]}, "Ollama holds a model in the shared memory"),
        ({"log": {"cuda_graphs": False, "evidence": GRAPHS}}, "eager mode: no CUDA graphs"),
        (
            {"log": {"warnings": ["Triton kernel JIT compilation during inference: chunk_fwd."]}},
            "kernels compile while requests wait",
        ),
        (
            {
                "log": {"quantization": "none", "evidence": {"quantization": "quantization=None"}},
                "model": "Qwen/Qwen3.5-35B-A3B-FP8",
            },
            "BF16 weights where FP8 was meant",
        ),
        (
            {"log": {"block_size": 2096}, "budget": 2048},
            "a block of the KV cache is larger than max-num-batched-tokens",
        ),
        ({"thought": 30, "answered": 32}, "it thinks before it answers"),
        ({"memory": {"MemAvailable": 2 * GIB, "MemTotal": 120 * GIB}}, "the memory is full"),
        ({"acceptance": 0.2}, "speculation guesses badly"),
        ({"kv_used": 0.99}, "the KV cache is full"),
    ],
)
def test_a_cause_that_is_seen_is_found_with_its_evidence(seen: dict[str, Any], name: str) -> None:
    first = causes(Seen(**seen))[0]
    assert (first.name, first.verdict) == (name, "found")
    assert first.evidence
    assert first.fix


def test_what_nobody_looked_at_is_unknown_not_excluded() -> None:
    assert "excluded" not in verdicts().values()
    assert "found" not in verdicts().values()


def test_chunked_prefill_is_never_blamed() -> None:
    found = verdicts(log={"chunked_prefill": True, "evidence": {"chunked_prefill": "enable_chunked_prefill=True"}})
    assert found["chunked prefill"] == "excluded"


def test_a_very_slow_server_has_more_possible_causes_than_a_fast_one() -> None:
    slow, fast = verdicts(share=0.12), verdicts(share=0.98)
    assert slow["a stale compile cache"] == "possible"
    assert "a stale compile cache" not in fast


def test_what_makes_answers_late_does_not_come_before_what_makes_tokens_slow() -> None:
    names = [one.name for one in causes(Seen(share=0.12, thought=30, answered=32))]
    assert names.index("a stale compile cache") < names.index("it thinks before it answers")
    assert causes(Seen(share=1.0, thought=30, answered=32))[0].name == "it thinks before it answers"


def test_the_ladder_leaves_out_what_is_excluded() -> None:
    assert not any(one.verdict == "excluded" for one in likely(Seen(busy=0.0, ollama=[])))


@pytest.mark.parametrize(
    ("name", "seen", "fix"),
    [
        ("llama_cpp", {"memory": {"MemAvailable": GIB, "MemTotal": 120 * GIB}}, "lower ctx-size, or stop"),
        ("sglang", {"memory": {"MemAvailable": GIB, "MemTotal": 120 * GIB}}, "lower mem-fraction-static, or stop"),
        ("openai", {"memory": {"MemAvailable": GIB, "MemTotal": 120 * GIB}}, "stop other processes"),
        ("sglang", {"kv_used": 0.99}, "lower max-running-requests or context-length"),
        ("llama_cpp", {"thought": 30, "answered": 32}, 'chat-template-kwargs: {"enable_thinking": false}'),
        ("sglang", {"thought": 30, "answered": 32}, "in each request"),
    ],
)
def test_a_fix_names_the_flags_of_the_engine_that_serves(name: str, seen: dict[str, Any], fix: str) -> None:
    first = causes(Seen(engine=engines.of(name), **seen))[0]
    assert fix in first.fix
    assert "gpu-memory-utilization" not in first.fix


@pytest.mark.parametrize("name", ["llama_cpp", "sglang", "openai"])
def test_what_only_vllm_prints_says_nothing_of_another_engine(name: str) -> None:
    found = verdicts(engine=engines.of(name), share=0.1, log={"warnings": [], "cuda_graphs": None})
    assert not {"eager mode: no CUDA graphs", "a stale compile cache"} & set(found)
