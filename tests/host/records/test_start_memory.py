"""Memory figures of verified starts: which are recorded, and how the next budget uses them."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.engine import get_engine
from sparkwright.engines.log.reader import read_log
from sparkwright.host.machine import Machine
from sparkwright.host.memory import holders, memory_fit
from sparkwright.host.memory.memory_fit import PlannedServer
from sparkwright.host.records import start_memory
from sparkwright.host.records.start_memory import StartMemory
from sparkwright.host.state import StateFolder
from sparkwright.units import GIB
from tests.modules.context import RecordingContext

START = StartMemory("qwen35", "sha256:a", "c0", "f0", True, 1.0, 110 * GIB, 2 * GIB, 4 * GIB, host_bytes=5 * GIB)
START_KEY = {"image": "sha256:a", "model": "c0", "arguments": "f0", "caches": ""}
#: from vllm 0.32.0, v1/worker/gpu_worker.py
GPU_LOG = """
(Worker pid=7) INFO 11-21 00:07:43 [gpu_model_runner.py:5150] Model loading took 34.00 GiB memory and 210.123456 seconds
(Worker pid=7) INFO 11-21 00:08:43 [gpu_worker.py:760] Available KV cache memory: 66.00 GiB
(EngineCore pid=6) INFO 11-21 00:08:44 [kv_cache_utils.py:2327] GPU KV cache size: 1,232,500 tokens
(EngineCore pid=6) INFO 11-21 00:08:44 [kv_cache_utils.py:2332] Maximum concurrency for 131,072 tokens per request: 9.40x
(Worker pid=7) INFO 11-21 00:08:59 [gpu_model_runner.py:6582] Graph capturing finished in 12 secs, took 1.50 GiB
(Worker pid=7) INFO 11-21 00:08:59 [gpu_worker.py:1031] Free memory on device (114.00/121.70 GiB) on startup. Desired GPU memory \
utilization is (0.85, 103.45 GiB). Actual usage is 35.00 GiB for consumed memory (weights + non-torch), 2.45 GiB for peak activation, \
and 1.50 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=1` (1.0 GiB) to fit into requested \
memory, or `--kv-cache-memory=2` (2.0 GiB) to fully utilize gpu memory. Current kv cache memory in use is 66.00 GiB.
"""


class FakeSpark(RecordingContext):
    """A host whose MemAvailable the test sets."""

    available_gib: float = 110

    def memory(self) -> dict[str, int]:
        return {"MemTotal": int(121.7 * GIB), "MemAvailable": int(self.available_gib * GIB)}


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    value = FakeSpark(tmp_path, docker_host="unix:///nowhere")
    monkeypatch.setattr(Machine, "meminfo", lambda self: value.memory())
    return value


MEMORY = get_engine("vllm").advice.memory({"gpu-memory-utilization": 0.85}, {})
CONTAINER = {"Name": "/qwen35", "Id": "x", "HostConfig": {}}


def measure_start(spark: FakeSpark, *, after_gib: float, lowest_gib: float = 1.0, log: str = GPU_LOG) -> StartMemory:
    """Return the memory of a verified start, before which 110 GiB were available."""
    holders.record_available(spark, 110 * GIB)
    spark.available_gib = after_gib
    needs = {**MEMORY.to_json(), "start": START_KEY}
    state = read_log(log.splitlines(), get_engine("vllm").log) if log else None
    start = memory_fit.measure_verified_start(spark, CONTAINER, needs, state, int(lowest_gib * GIB))
    assert start is not None
    return start


def test_the_hosts_side_is_the_used_memory_minus_the_gpus_side_in_the_engine_log(spark: FakeSpark) -> None:
    start = measure_start(spark, after_gib=0.0)
    assert start.gpu_bytes == pytest.approx((35 + 2.45 + 1.5 + 66) * GIB) and start.gpu_source == "log"
    assert start.host_bytes == pytest.approx((110 - 104.95) * GIB, abs=4)
    assert (start.kv_tokens, start.full_requests) == (1_232_500, 9.4)
    assert (start.lowest_bytes, start.peak_bytes, start.cold) == (0, 0, True)


def test_without_log_lines_the_gpus_side_is_the_configured_share(spark: FakeSpark) -> None:
    start = measure_start(spark, after_gib=1.0, lowest_gib=0.5, log="")
    assert start.gpu_source == "flags"
    assert start.gpu_bytes == int(0.85 * spark.memory()["MemTotal"])
    assert start.host_bytes == 109 * GIB - start.gpu_bytes
    assert start.lowest_bytes == GIB // 2 and start.peak_bytes == GIB // 2


def test_a_start_that_this_run_did_not_observe_is_not_recorded(spark: FakeSpark) -> None:
    needs = {**MEMORY.to_json(), "start": START_KEY}
    assert memory_fit.measure_verified_start(spark, CONTAINER, needs, None, None) is None


def test_the_next_budget_uses_a_start_with_the_same_arguments_or_else_the_same_image(spark: FakeSpark) -> None:
    def hosts_side(**fields: str) -> tuple[float, bool]:
        budget = memory_fit.compute_budget(spark, PlannedServer("qwen35", MEMORY, {**START_KEY, **fields}), 4)
        row = next(row for row in budget.rows if row.name == "host's side")
        return row.size_bytes / GIB, row.assumed

    assert hosts_side() == (7.0, True), "nothing was measured"
    start_memory.add(spark.state, dataclasses.replace(START, arguments="other", host_bytes=6 * GIB))
    assert hosts_side() == (6.0, False)
    start_memory.add(spark.state, START)
    assert hosts_side() == (5.0, False)
    assert hosts_side(image="sha256:b") == (7.0, True), "no start of this image"
    spark.state.remove("start_memory")
    assert hosts_side() == (7.0, True)


def test_the_record_keeps_the_newest_figures_of_each_start_and_is_limited(tmp_path: Path) -> None:
    state = StateFolder(tmp_path)
    for n in range(start_memory.MAX_STARTS + 10):
        start_memory.add(state, dataclasses.replace(START, arguments=f"f{n}", at=float(n)))
    newest = dataclasses.replace(START, arguments="f20", at=1000.0)
    start_memory.add(state, newest)
    stored = start_memory.read_starts(state)
    assert len(stored) == start_memory.MAX_STARTS and stored[0] == newest
    assert sum(item.arguments == "f20" for item in stored) == 1


@pytest.mark.parametrize(
    "record",
    [
        {"version": 2, "starts": [START.to_json()]},
        {"version": 1, "starts": [{**START.to_json(), "host_bytes": -1}]},
        {"version": 1, "starts": "x"},
        {"version": 1},
    ],
)
def test_figures_of_a_damaged_record_or_another_version_are_not_used(tmp_path: Path, record: Any) -> None:
    state = StateFolder(tmp_path)
    state.write("start_memory", record)
    assert all(item.host_bytes is None for item in start_memory.read_starts(state))
