"""The memory budget of a start: rows that add up, from each engine's memory model and from earlier measurements."""

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
HOST_ROW = Row("the host itself", 6 * GIB, "now", "host")
WARM = StartFacts(has_warm_cache=True)
DESCRIBED_SERVER = {"served_name": "m", "memory_gib": 90}
LLAMA_HEADER = {
    "general.architecture": "llama",
    "llama.block_count": 32,
    "llama.context_length": 131072,
    "llama.attention.head_count": 32,
    "llama.attention.head_count_kv": 8,
    "llama.embedding_length": 4096,
}


def lock_file(size_gib: int, path: str = "model.safetensors", **config: Any) -> dict[str, Any]:
    """Return the lock's entry of a model with a single file."""
    return {"files": [{"path": path, "size_bytes": size_gib * GIB}], **config}


def estimate_memory(engine: str, flags: dict[str, Any], locked: dict[str, Any] | None = None) -> Memory:
    return get_engine(engine).advice.memory(flags, locked or {})


def build_budget(memory: Memory, start: StartFacts | None = None) -> Budget:
    return budget.build(memory, TOTAL, start or StartFacts(), reserve_bytes=4 * GIB, system_row=HOST_ROW)


def row_sizes(memory_budget: Budget) -> dict[str, float]:
    return {row.name: round(row.size_bytes / GIB, 1) for row in memory_budget.rows}


def test_vllm_fills_its_share_and_host_memory_is_added() -> None:
    memory = build_budget(estimate_memory("vllm", {"gpu-memory-utilization": 0.85}, lock_file(35)))
    assert row_sizes(memory) == {
        "weights": 35.0,
        "KV cache and computation": 68.4,
        "host's side": 7.0,
        "compile peak": 0.0,
        "the host itself": 6.0,
        "reserve": 4.0,
    }
    assert sum(row.size_bytes for row in memory.rows) == memory.need_bytes == memory.total_bytes - memory.left_bytes
    assert [row.name for row in memory.rows if row.assumed] == ["host's side", "compile peak"]


def test_a_cold_start_that_hung_a_host_does_not_fit() -> None:
    """vllm #56824: 0.70, 77 GiB of weights, cold: 119.2 of 121.7 GiB were taken before any request."""
    memory = estimate_memory("vllm", {"gpu-memory-utilization": 0.70}, lock_file(77))
    cold = build_budget(memory)
    assert cold.need_bytes - 4 * GIB == pytest.approx(118 * GIB, rel=0.01)
    assert not cold.fits
    assert build_budget(memory, WARM).fits, "a warm start has no compile peak"


def test_the_largest_cache_in_bytes_is_written_as_a_whole_number() -> None:
    memory = estimate_memory("vllm", {"kv-cache-memory-bytes": 200 * GIB}, lock_file(35))
    flag, _, value = budget.format_largest_fit(memory, build_budget(memory)).partition(" ")
    assert flag == "kv-cache-memory-bytes" and value.isdigit()
    assert build_budget(estimate_memory("vllm", {flag: int(value)}, lock_file(35))).fits


def test_a_cache_in_bytes_needs_the_share_of_the_startup_check() -> None:
    flags = {"kv-cache-memory-bytes": 10 * GIB}
    memory = estimate_memory("vllm", flags, lock_file(35))
    memory_budget = build_budget(memory)
    assert (row_sizes(memory_budget)["KV cache"], row_sizes(memory_budget)["weights"]) == (10.0, 35.0)
    assert memory.start_share == 0.92, "vLLM's default, which it checks and does not allocate"
    assert memory_budget.owner_bytes("server") + 4 * GIB >= int(0.92 * TOTAL)
    low = build_budget(estimate_memory("vllm", {**flags, "gpu-memory-utilization": 0.4}, lock_file(35)))
    assert "start-up check" not in row_sizes(low) and low.fits


@pytest.mark.parametrize(("share", "fits"), [(0.7, True), (0.8, False)])
def test_sglang_computes_outside_its_share(share: float, fits: bool) -> None:
    memory_budget = build_budget(estimate_memory("sglang", {"mem-fraction-static": share}))
    assert (row_sizes(memory_budget)["computation"], memory_budget.fits) == (13.0, fits)


@pytest.mark.parametrize(
    ("engine", "flags", "sizes"),
    [
        ("vllm", {"cpu-offload-gb": 10, "kv-offloading-size": 20}, {"weights on the CPU": 10, "KV cache on the CPU": 20}),
        ("vllm", {"cpu-offload-gb": 0, "kv-offloading-size": "much"}, {}),
        ("vllm", {"kv-cache-memory-bytes": GIB, "cpu-offload-gb": 10, "kv-offloading-size": 20}, {"KV cache on the CPU": 20}),
        ("sglang", {"cpu-offload-gb": 10}, {"weights on the CPU": 10}),
        ("sglang", {"enable-hierarchical-cache": True, "hicache-size": 30}, {"KV cache on the CPU": 27.9}),
        ("sglang", {"enable-hierarchical-cache": True}, {"KV cache on the CPU": 51.7}),
        ("sglang", {"hicache-size": 30}, {}),
    ],
)  # fmt: skip
def test_what_an_engine_keeps_on_the_cpu_is_in_the_same_memory(
    engine: str, flags: dict[str, Any], sizes: dict[str, float]
) -> None:
    share = {"vllm": "gpu-memory-utilization", "sglang": "mem-fraction-static"}[engine]
    memory = estimate_memory(engine, {share: 0.5, **flags}, lock_file(35))
    found = row_sizes(build_budget(memory))
    assert {name: size for name, size in found.items() if name.endswith("on the CPU")} == sizes
    without = estimate_memory(
        engine, {share: 0.5, **{name: flags[name] for name in flags if "bytes" in name}}, lock_file(35)
    )
    assert (memory.bytes - without.bytes) / GIB == pytest.approx(sum(sizes.values()), abs=0.1)


def test_a_start_measured_without_the_cpu_parts_is_not_counted_twice() -> None:
    """An earlier version counted what vLLM keeps on the CPU as the host's side."""
    flags = {"gpu-memory-utilization": 0.5, "kv-offloading-size": 20}
    memory = estimate_memory("vllm", flags)
    measured = MeasuredStart(host_bytes=26 * GIB, gpu_bytes=int(0.5 * TOTAL))
    start = StartFacts(last_start=measured, has_warm_cache=True)
    assert row_sizes(build_budget(memory, start))["host's side"] == 6.0
    other = StartFacts(last_start=dataclasses.replace(measured, is_same_start=False), has_warm_cache=True)
    assert row_sizes(build_budget(memory, other))["host's side"] == 26.0


def test_a_described_server_takes_the_memory_of_its_recipe() -> None:
    memory_budget = build_budget(estimate_memory("openai", DESCRIBED_SERVER))
    assert row_sizes(memory_budget) == {"the server": 90.0, "the host itself": 6.0, "reserve": 4.0}


def test_measured_sizes_replace_assumptions() -> None:
    memory = estimate_memory("vllm", {"gpu-memory-utilization": 0.85})
    gpu_bytes = memory.gpu_bytes(TOTAL) + GIB
    last_start = MeasuredStart(host_bytes=5 * GIB, gpu_bytes=gpu_bytes, kv_tokens=900_000, full_requests=6.9)
    memory_budget = build_budget(memory, StartFacts(last_start=last_start, has_warm_cache=True))
    assert row_sizes(memory_budget)["host's side"] == 5.0 and row_sizes(memory_budget)["other GPU memory"] == 1.0
    assert not any(row.assumed for row in memory_budget.rows)
    assert "held 900,000 tokens, 6.9 full-length requests" in memory_budget.lines()[-1]
    other = build_budget(
        memory, StartFacts(last_start=dataclasses.replace(last_start, is_same_start=False), has_warm_cache=True)
    )
    assert "other GPU memory" not in row_sizes(other) and other.kv_tokens is None
    assert "with this image, but another model or other arguments" in "\n".join(other.lines())


@pytest.mark.parametrize(("warm", "peak_gib"), [(False, 20.0), (True, 0.0)], ids=["cold", "warm"])
def test_a_cold_start_reserves_the_peak_of_the_last_cold_start(warm: bool, peak_gib: float) -> None:
    cold = MeasuredStart(host_bytes=5 * GIB, peak_bytes=20 * GIB)
    start = StartFacts(last_start=cold, last_cold_start=cold, has_warm_cache=warm)
    memory = estimate_memory("vllm", {"gpu-memory-utilization": 0.6})
    assert row_sizes(build_budget(memory, start))["compile peak"] == peak_gib


def test_dev_shm_is_a_limit_and_not_added() -> None:
    start = StartFacts(shm_bytes=64 * GIB, shm_source="shm_size")
    memory_budget = build_budget(estimate_memory("openai", DESCRIBED_SERVER), start)
    assert memory_budget.fits and memory_budget.limits_bytes == 64 * GIB
    assert any("(64.0)" in line and "at most: shm_size" in line for line in memory_budget.lines())


@pytest.mark.parametrize(
    ("name", "flags", "locked", "largest"),
    [
        ("vllm", {"gpu-memory-utilization": 0.95}, {}, "gpu-memory-utilization 0.86"),
        ("sglang", {"mem-fraction-static": 0.95}, {}, "mem-fraction-static 0.75"),
        ("vllm", {"gpu-memory-utilization": 0.95}, lock_file(200), ""),
        ("openai", {"served_name": "m", "memory_gib": 130}, {}, ""),
    ],
)
def test_the_largest_setting_that_fits_is_named(name: str, flags: Any, locked: Any, largest: str) -> None:
    memory = estimate_memory(name, flags, locked)
    memory_budget = build_budget(memory, WARM)
    assert not memory_budget.fits and budget.format_largest_fit(memory, memory_budget) == largest
    if largest:
        flag, _, value = largest.partition(" ")
        assert build_budget(estimate_memory(name, {flag: float(value)}), WARM).fits
        assert not build_budget(estimate_memory(name, {flag: float(value) + 0.01}), WARM).fits


def test_llama_cpp_counts_its_context_by_the_header() -> None:
    locked = lock_file(60, "m.gguf", config=LLAMA_HEADER)
    flags = {"ctx-size": 524288, "parallel": 4, "cache-ram": 2048}
    memory = estimate_memory("llama_cpp", flags, locked)
    memory_budget = build_budget(memory)
    expected = {"weights": 60.0, "KV cache": 64.0, "earlier prompts": 2.0, "host's side": 1.5}
    assert row_sizes(memory_budget).items() >= expected.items()
    flag, _, tokens = budget.format_largest_fit(memory, memory_budget).partition(" ")
    assert flag == "ctx-size" and 200_000 < int(tokens) < 524288
    assert build_budget(estimate_memory("llama_cpp", {**flags, "ctx-size": int(tokens)}, locked)).fits


def test_a_budget_survives_json_and_invalid_json_is_refused() -> None:
    memory_budget = build_budget(estimate_memory("vllm", {"gpu-memory-utilization": 0.85}, lock_file(35)))
    data = json.loads(json.dumps(memory_budget.to_json()))
    assert Budget.of_json(data) == memory_budget
    assert Memory.of_json(estimate_memory("sglang", {"mem-fraction-static": 0.7}).to_json()).share == 0.7
    for invalid in (None, {}, {**data, "rows": [{"name": 1}]}, {**data, "total_bytes": "x"}):
        with pytest.raises(ValueError):
            Budget.of_json(invalid)


@pytest.mark.parametrize(
    ("name", "flags", "container", "remedy"),
    [
        ("vllm", {"gpu-memory-utilization": 0.9}, {"shm_size": "64gb"}, "gpu-memory-utilization to 0.85 and shm_size"),
        ("vllm", {"gpu-memory-utilization": 0.85}, {"shm_size": "64gb"}, "set shm_size to 1gb"),
        ("vllm", {"gpu-memory-utilization": 0.6, "kv-offloading-size": 20}, {"shm_size": "64gb"}, "shm_size to 21gb"),
        ("sglang", {"mem-fraction-static": 0.95}, {}, "set mem-fraction-static to 0.75"),
        ("openai", {"served_name": "m", "memory_gib": 118}, {}, "serve a smaller model"),
    ],
)
def test_lint_warns_if_a_gb10_has_too_little_left(name: str, flags: Any, container: Any, remedy: str) -> None:
    case = budget.BudgetCase(estimate_memory(name, flags), container)
    (finding,) = budget.RULES.check(case)
    assert finding.severity == "warning" and "leaves too little" in finding.sentence
    assert remedy in finding.ways_out[0].text
    assert budget.RULES.check(dataclasses.replace(case, platform="ascend")) == []


@pytest.mark.parametrize(
    ("name", "flags"), [("vllm", {"gpu-memory-utilization": 0.85}), ("sglang", {"mem-fraction-static": 0.7})]
)
def test_lint_accepts_settings_that_fit(name: str, flags: dict[str, float]) -> None:
    assert budget.RULES.check(budget.BudgetCase(estimate_memory(name, flags), {"shm_size": "1gb"})) == []


def test_an_offloaded_kv_cache_in_dev_shm_is_counted_once() -> None:
    """vLLM creates it there, so shm_size must be larger."""
    memory = estimate_memory("vllm", {"gpu-memory-utilization": 0.6, "kv-offloading-size": 20})
    assert budget.RULES.check(budget.BudgetCase(memory, {"shm_size": "21gb"})) == []
