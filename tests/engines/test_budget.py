"""The memory budget of a start: rows that add up, by each engine's own memory model, and by what was measured before."""

import dataclasses
import json
from typing import Any

import pytest

from sparkwright.engines import budget
from sparkwright.engines.budget import Budget, MeasuredStart, Row, StartFacts
from sparkwright.engines.engine import get_engine
from sparkwright.engines.memory import Memory
from sparkwright.units import GIB

TOTAL = int(121.7 * GIB)
OWN = Row("the host itself", 6 * GIB, "now", "host")
WEIGHTS = {"files": [{"path": "model-00001-of-00001.safetensors", "size_bytes": 35 * GIB}]}


def build_budget(memory: Memory, start: StartFacts | None = None, total: int = TOTAL) -> Budget:
    return budget.build(memory, total, start or StartFacts(), reserve_bytes=4 * GIB, system=OWN)


def sizes(memory_budget: Budget) -> dict[str, float]:
    return {row.name: round(row.size_bytes / GIB, 1) for row in memory_budget.rows}


def test_vllm_fills_its_share_and_host_memory_is_added() -> None:
    memory = build_budget(get_engine("vllm").advice.memory({"gpu-memory-utilization": 0.85}, WEIGHTS))
    assert sizes(memory) == {
        "weights": 35.0,
        "KV cache and computation": 68.4,
        "host's side": 7.0,
        "compile peak": 0.0,
        "the host itself": 6.0,
        "reserve": 4.0,
    }
    assert sum(row.size_bytes for row in memory.rows) == memory.need_bytes == memory.total_bytes - memory.left_bytes
    assumed = [row.name for row in memory.rows if row.assumed]
    assert assumed == ["host's side", "compile peak"], "what was never measured is marked"


def test_a_cold_start_that_hung_a_host_does_not_fit() -> None:
    """vllm #56824: 0.70, 77 GiB of weights, cold: 119.2 of 121.7 GiB were taken before any request."""
    locked = {"files": [{"path": "a.safetensors", "size_bytes": 77 * GIB}]}
    memory = get_engine("vllm").advice.memory({"gpu-memory-utilization": 0.70}, locked)
    cold = build_budget(memory)
    assert cold.need_bytes - 4 * GIB == pytest.approx(118 * GIB, rel=0.01), "as it was seen"
    assert not cold.fits
    assert build_budget(memory, StartFacts(warm=True)).fits, "what was compiled is there: no peak"


def test_a_cache_in_bytes_needs_the_share_of_the_startup_check() -> None:
    flags = {"kv-cache-memory-bytes": 10 * GIB}
    memory = get_engine("vllm").advice.memory(flags, WEIGHTS)
    memory_budget = build_budget(memory, total=TOTAL)
    assert sizes(memory_budget)["KV cache"] == 10.0 and sizes(memory_budget)["weights"] == 35.0
    assert memory.start_share == 0.92, "vLLM's default, though it does not take it"
    engine = memory_budget.owner_bytes("server")
    assert engine + 4 * GIB >= int(0.92 * TOTAL), "so much must be available"
    low = build_budget(get_engine("vllm").advice.memory({**flags, "gpu-memory-utilization": 0.4}, WEIGHTS))
    assert "start-up check" not in sizes(low) and low.fits


def test_sglang_computes_outside_its_share() -> None:
    memory = build_budget(get_engine("sglang").advice.memory({"mem-fraction-static": 0.75}, {}))
    assert sizes(memory)["computation"] == 13.0, "8192 tokens of a chunk, 256 requests of graphs"
    assert not build_budget(get_engine("sglang").advice.memory({"mem-fraction-static": 0.8}, {})).fits
    assert build_budget(get_engine("sglang").advice.memory({"mem-fraction-static": 0.7}, {})).fits, "0.70 held"


def test_a_described_server_takes_the_memory_of_its_recipe() -> None:
    memory = build_budget(get_engine("openai").advice.memory({"served_name": "m", "memory_gib": 90}, {}))
    assert sizes(memory) == {"the server": 90.0, "the host itself": 6.0, "reserve": 4.0}


def test_measured_sizes_replace_assumptions() -> None:
    memory = get_engine("vllm").advice.memory({"gpu-memory-utilization": 0.85}, {})
    learned = MeasuredStart(
        host_bytes=5 * GIB, gpu_bytes=memory.gpu_bytes(TOTAL) + GIB, kv_tokens=900_000, full_requests=6.9
    )
    memory_budget = build_budget(memory, StartFacts(learned=learned, warm=True))
    assert sizes(memory_budget)["host's side"] == 5.0 and sizes(memory_budget)["other GPU memory"] == 1.0
    assert not any(row.assumed for row in memory_budget.rows)
    assert "held 900000 tokens, 6.9 full-length requests" in memory_budget.lines()[-1]
    other = build_budget(memory, StartFacts(learned=dataclasses.replace(learned, same=False), warm=True))
    assert "other GPU memory" not in sizes(other) and other.kv_tokens is None
    assert "other arguments of this image" in "\n".join(other.lines())


def test_a_cold_start_reserves_the_peak_of_the_last_cold_start() -> None:
    memory = get_engine("vllm").advice.memory({"gpu-memory-utilization": 0.6}, {})
    cold = MeasuredStart(host_bytes=5 * GIB, peak_bytes=20 * GIB)
    assert sizes(build_budget(memory, StartFacts(learned=cold, learned_cold=cold)))["compile peak"] == 20.0
    assert sizes(build_budget(memory, StartFacts(learned=cold, learned_cold=cold, warm=True)))["compile peak"] == 0.0


def test_dev_shm_is_a_limit_and_not_added() -> None:
    memory = get_engine("openai").advice.memory({"served_name": "m", "memory_gib": 90}, {})
    memory_budget = build_budget(memory, StartFacts(shm_bytes=64 * GIB, shm_source="shm_size"))
    assert memory_budget.fits and memory_budget.limits_bytes == 64 * GIB
    assert any("(64.0)" in line and "at most: shm_size" in line for line in memory_budget.lines())


@pytest.mark.parametrize(
    ("name", "flags", "locked", "fits"),
    [
        ("vllm", {"gpu-memory-utilization": 0.95}, {}, "gpu-memory-utilization 0.86"),
        ("sglang", {"mem-fraction-static": 0.95}, {}, "mem-fraction-static 0.75"),
        ("vllm", {"gpu-memory-utilization": 0.95}, {"files": [{"path": "a.bin", "size_bytes": 200 * GIB}]}, ""),
        ("openai", {"served_name": "m", "memory_gib": 130}, {}, ""),
    ],
)
def test_the_largest_setting_that_fits_is_named(name: str, flags: Any, locked: Any, fits: str) -> None:
    memory = get_engine(name).advice.memory(flags, locked)
    memory_budget = build_budget(memory, StartFacts(warm=True))
    assert not memory_budget.fits and budget.format_largest_fit(memory, memory_budget) == fits
    if fits:
        flag, _, value = fits.partition(" ")
        lower = get_engine(name).advice.memory({flag: float(value)}, locked)
        higher = get_engine(name).advice.memory({flag: float(value) + 0.01}, locked)
        assert build_budget(lower, StartFacts(warm=True)).fits and not build_budget(higher, StartFacts(warm=True)).fits


def test_llama_cpp_counts_its_context_by_the_header() -> None:
    header = {
        "general.architecture": "llama",
        "llama.block_count": 32,
        "llama.context_length": 131072,
        "llama.attention.head_count": 32,
        "llama.attention.head_count_kv": 8,
        "llama.embedding_length": 4096,
    }
    locked = {"files": [{"path": "m.gguf", "size_bytes": 60 * GIB}], "config": header}
    flags = {"ctx-size": 524288, "parallel": 4, "cache-ram": 2048}
    memory = get_engine("llama_cpp").advice.memory(flags, locked)
    memory_budget = build_budget(memory)
    assert sizes(memory_budget)["weights"] == 60.0 and sizes(memory_budget)["KV cache"] == 64.0
    assert sizes(memory_budget)["earlier prompts"] == 2.0 and sizes(memory_budget)["host's side"] == 1.5
    flag, _, tokens = budget.format_largest_fit(memory, memory_budget).partition(" ")
    assert flag == "ctx-size" and 200_000 < int(tokens) < 524288
    assert build_budget(get_engine("llama_cpp").advice.memory({**flags, "ctx-size": int(tokens)}, locked)).fits


def test_a_budget_survives_json_and_invalid_json_is_refused() -> None:
    memory = build_budget(get_engine("vllm").advice.memory({"gpu-memory-utilization": 0.85}, WEIGHTS))
    data = json.loads(json.dumps(memory.to_json()))
    assert Budget.of_json(data) == memory
    assert Memory.of_json(get_engine("sglang").advice.memory({"mem-fraction-static": 0.7}, {}).to_json()).share == 0.7
    for broken in (None, {}, {**data, "rows": [{"name": 1}]}, {**data, "total_bytes": "x"}):
        with pytest.raises(ValueError):
            Budget.of_json(broken)


@pytest.mark.parametrize(
    ("name", "flags", "container", "way"),
    [
        ("vllm", {"gpu-memory-utilization": 0.9}, {"shm_size": "64gb"}, "gpu-memory-utilization to 0.85 and shm_size"),
        ("vllm", {"gpu-memory-utilization": 0.85}, {"shm_size": "64gb"}, "set shm_size to 1gb"),
        ("sglang", {"mem-fraction-static": 0.95}, {}, "set mem-fraction-static to 0.75"),
        ("openai", {"served_name": "m", "memory_gib": 118}, {}, "serve a smaller model"),
    ],
)
def test_lint_warns_if_a_gb10_has_too_little_left(name: str, flags: Any, container: Any, way: str) -> None:
    case = budget.BudgetCase(get_engine(name).advice.memory(flags, {}), container)
    (finding,) = budget.RULES.check(case)
    assert finding.severity == "warning" and "leaves too little" in finding.sentence
    assert way in finding.ways_out[0].text
    assert budget.RULES.check(dataclasses.replace(case, platform="ascend")) == []


def test_lint_accepts_settings_that_fit() -> None:
    for name, flags in (("vllm", {"gpu-memory-utilization": 0.85}), ("sglang", {"mem-fraction-static": 0.7})):
        case = budget.BudgetCase(get_engine(name).advice.memory(flags, {}), {"shm_size": "1gb"})
        assert budget.RULES.check(case) == []
