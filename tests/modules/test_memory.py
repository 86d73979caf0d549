"""Holders of memory, released memory and refusals, with real processes and files and a simulated meminfo."""

import ctypes
import gc
import itertools
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from sparkwright.engines.vllm import advice as vllm_advice
from sparkwright.errors import Exit
from sparkwright.host import gpu_processes
from sparkwright.host.machine import Machine
from sparkwright.host.memory import holders
from sparkwright.modules import memory
from sparkwright.modules.memory import AssertMemoryFits, Memory, WaitMemoryReleased
from sparkwright.modules.model import model_files
from sparkwright.units import GIB
from tests.modules.context import RecordingContext


@pytest.fixture
def hog() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process with 0.4 GiB of memory."""
    command = [sys.executable, "-c", "x = bytearray(400 * 2**20); print('ready', flush=True); input()"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline()
    yield process
    process.kill()
    process.wait()


class FakeSpark(RecordingContext):
    """A host whose nvidia-smi and meminfo the test sets; its processes are those of this machine."""

    def set_memory(self, **gib: float) -> None:
        self.memory_bytes = {name: int(size * GIB) for name, size in gib.items()}

    def set_gpu_use(self, pid: int, mib: int) -> None:
        tool = self.machine.home / "bin/nvidia-smi"
        tool.parent.mkdir(exist_ok=True)
        tool.write_text(f'#!/bin/sh\necho "{pid}, {mib}"\necho "77777777, [N/A]"\n')
        tool.chmod(0o755)

    def save_stop(self, held_gib: float | None) -> None:
        """Store the record of a stopped server, with 10 GiB available before its stop."""
        held_bytes = None if held_gib is None else int(held_gib * GIB)
        record = {"id": "x", "available_bytes": 10 * GIB, "held_bytes": held_bytes, "run": "run-1"}
        self.state.write("stopping", record)


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSpark:
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    value = FakeSpark(tmp_path, env=env, docker_host="unix:///nowhere", ollama_url="http://127.0.0.1:1")
    value.set_memory(MemTotal=120, MemFree=20, MemAvailable=25, Cached=6, Shmem=1, Buffers=0, AnonPages=3, Slab=1)
    monkeypatch.setattr(Machine, "meminfo", lambda self: dict(value.memory_bytes))
    return value


SetAvailable = Callable[..., None]


@pytest.fixture
def set_available(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> SetAvailable:
    """Return a function that sets the available GiB of the next reads; the last value stays."""

    def set_values(*values_gib: int) -> None:
        values = itertools.chain(values_gib, itertools.repeat(values_gib[-1]))
        monkeypatch.setattr(Machine, "meminfo", lambda self: {**spark.memory_bytes, "MemAvailable": next(values) * GIB})

    return set_values


def test_table_names_process_user_gpu_memory_and_remedy(spark: FakeSpark, hog: subprocess.Popen[bytes]) -> None:
    spark.set_gpu_use(hog.pid, 50 * 1024)
    rows = {row["kind"]: row for row in holders.inspect(spark)}
    first = next(row for row in holders.inspect(spark) if f"pid {hog.pid}," in row["holder"])
    assert first["bytes"] == pytest.approx(50.4 * GIB, rel=0.01)
    assert "python" in first["holder"] and "user " in first["holder"]
    assert first["frees"].strip("`").endswith(f"kill {hog.pid}")
    assert rows["page cache"]["bytes"] == 5 * GIB
    assert rows["shared memory"]["bytes"] == 1 * GIB
    assert rows["driver"]["bytes"] == (120 - 20 - 6 - 3 - 1 - 50) * GIB
    assert "leaked until reboot" in rows["driver"]["frees"]


def test_insufficient_memory_is_refused_with_the_table(spark: FakeSpark, hog: subprocess.Popen[bytes]) -> None:
    spark.set_gpu_use(hog.pid, 50 * 1024)
    result = Memory().run(Memory.Args(utilization=0.85, timeout_s=0), spark)
    assert (result.failed, result.exit) == (True, Exit.REFUSED)
    assert result.msg.startswith(
        "113.0 GiB needed (102.0 for the engine, 7.0 on the host's side, 4 reserve), but 25.0 GiB are available"
    )
    evidence = result.data["evidence"]
    begin = next(n for n, row in enumerate(evidence) if "held by" in row)
    header, first, *_ = evidence[begin:]
    assert header.split() == ["GiB", "held", "by", "what", "frees", "it"]
    assert first.split()[0] == "50.4" and f"pid {hog.pid}" in first


def test_share_that_exceeds_the_host_is_refused_at_once(spark: FakeSpark) -> None:
    result = Memory().run(Memory.Args(utilization=0.98), spark)
    assert result.msg.startswith("128.6 GiB needed (117.6 for the engine, 7.0 on the host's side, 4 reserve)")
    assert "but the host has 120.0 GiB" in result.msg and "held by" not in str(result.data["evidence"])


def test_memory_that_flags_keep_on_the_cpu_is_named_as_the_cause(spark: FakeSpark) -> None:
    need = vllm_advice.memory({"gpu-memory-utilization": 0.5, "cpu-offload-gb": 10, "kv-offloading-size": 300}, {})
    result = Memory().run(Memory.Args(engine_memory=need.to_json()), spark)
    assert (result.exit, result.fix) == (
        Exit.REFUSED,
        "Lower cpu-offload-gb, kv-offloading-size or its share of memory.",
    )


def test_reserve_above_the_host_is_named_as_the_cause(spark: FakeSpark) -> None:
    result = Memory().run(Memory.Args(utilization=0.5, reserve_gib=200), spark)
    assert (result.exit, result.fix) == (
        Exit.REFUSED,
        "Lower `reserve_gib` (in the host's `vars:`): 200 GiB is more than the host has.",
    )


def test_released_memory_is_waited_for(spark: FakeSpark, set_available: SetAvailable) -> None:
    set_available(25, 25, 60, 115)
    result = Memory().run(Memory.Args(utilization=0.85, ollama="leave"), spark)
    assert (result.failed, result.data["available_bytes"]) == (False, 115 * GIB)


@pytest.mark.parametrize("held_gib", [0, 50])
def test_memory_that_cannot_be_released_is_not_waited_for(
    spark: FakeSpark, set_available: SetAvailable, monkeypatch: pytest.MonkeyPatch, held_gib: int
) -> None:
    """113 GiB are needed, and 60 are available after the release: another program holds the rest."""
    if held_gib:
        spark.save_stop(held_gib)
    set_available(25, 25, 40, 60)
    monkeypatch.setattr(memory, "QUIET_PERIOD_S", 0.3)
    result = Memory().run(Memory.Args(utilization=0.85, timeout_s=600, ollama="leave"), spark)
    assert (result.failed, result.exit, result.data["available_bytes"]) == (True, Exit.REFUSED, 60 * GIB)


def test_memory_of_a_stopped_server_is_waited_for_until_it_is_released(
    spark: FakeSpark, set_available: SetAvailable, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.save_stop(105)
    set_available(*[10] * 8, 115)
    monkeypatch.setattr(memory, "QUIET_PERIOD_S", 0.0)
    assert not Memory().run(Memory.Args(utilization=0.85, ollama="leave"), spark).failed


def test_released_memory_is_compared_with_the_memory_of_the_server(spark: FakeSpark) -> None:
    spark.save_stop(100)
    spark.memory_bytes["MemAvailable"] = 106 * GIB
    assert WaitMemoryReleased().run(WaitMemoryReleased.Args(), spark).data["back"] is True
    spark.memory_bytes["MemAvailable"] = 90 * GIB
    result = WaitMemoryReleased().run(WaitMemoryReleased.Args(timeout_s=0), spark)
    assert (result.data["back"], result.data["missing_bytes"], result.failed) == (False, 20 * GIB, False)
    assert "20.0 of the stopped server's 100.0 GiB not released" in result.msg
    assert any("what frees it" in item.get("text", "") for item in spark.events)


def test_small_server_allows_for_memory_of_other_programs(spark: FakeSpark) -> None:
    spark.save_stop(0.25)
    spark.memory_bytes["MemAvailable"] = 10 * GIB - GIB // 8
    assert WaitMemoryReleased().run(WaitMemoryReleased.Args(timeout_s=0), spark).data["back"] is True
    spark.memory_bytes["MemAvailable"] = 9 * GIB
    assert WaitMemoryReleased().run(WaitMemoryReleased.Args(timeout_s=0), spark).data["back"] is False


def test_unrecorded_memory_is_waited_for_until_no_more_is_released(
    spark: FakeSpark, set_available: SetAvailable, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.save_stop(None)
    set_available(10, 40, 80, 110)
    monkeypatch.setattr(memory, "SETTLE_PERIOD_S", 0.2)
    result = WaitMemoryReleased().run(WaitMemoryReleased.Args(), spark)
    assert result.data["back"] is None
    assert result.msg == "the stopped server's memory was not recorded; 100.0 GiB released"


def test_recorded_memory_that_was_free_before_the_stop_is_not_called_unrecorded(
    spark: FakeSpark, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.save_stop(0)
    monkeypatch.setattr(memory, "SETTLE_PERIOD_S", 0.0)
    result = WaitMemoryReleased().run(WaitMemoryReleased.Args(), spark)
    assert result.msg.startswith("the server held no memory when it was stopped;"), result.msg


def test_unrecorded_stop_is_not_waited_for(spark: FakeSpark) -> None:
    result = WaitMemoryReleased().run(WaitMemoryReleased.Args(), spark)
    assert (result.data["back"], result.msg) == (None, "nothing was stopped")


def test_check_mode_does_not_wait(spark: FakeSpark) -> None:
    spark.check = True
    assert Memory().run(Memory.Args(utilization=0.85), spark).failed


def test_cached_pages_of_a_model_are_dropped_without_root(tmp_path: Path) -> None:
    file = tmp_path / "model/deep/model-00001.safetensors"
    file.parent.mkdir(parents=True)
    file.write_bytes(os.urandom(8 * 2**20))
    with file.open("rb") as opened:
        opened.read()
    if count_cached_pages(file) == 0:
        pytest.skip("this file system keeps no pages")
    assert model_files.drop_cached_pages(tmp_path / "model") == 1
    if "tmpfs" in subprocess.check_output(["stat", "-f", "-c", "%T", tmp_path], text=True):
        pytest.skip("the pages of tmpfs cannot be dropped")
    assert count_cached_pages(file) == 0


def count_cached_pages(path: Path) -> int:
    """Return the number of a file's pages in memory (mincore)."""
    size = path.stat().st_size
    pages = -(-size // mmap.PAGESIZE)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size) as mapped:
        flags = (ctypes.c_ubyte * pages)()
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), flags) == 0
        cached_pages = sum(flag & 1 for flag in flags)
        del address
        gc.collect()
    return cached_pages


@pytest.mark.parametrize(
    "cgroup",
    [
        "0::/system.slice/docker-{id}.scope",
        "12:memory:/docker/{id}",
        "0::/../../docker/{id}/init.scope",
        "0::/kubepods/besteffort/pod1/cri-containerd-{id}.scope",
        "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{id}.scope",
    ],
)
def test_processes_of_a_container_are_found_by_cgroup(tmp_path: Path, cgroup: str) -> None:
    container_id = "0123456789abcdef" * 4
    for pid, text in (("42", cgroup.format(id=container_id)), ("43", "0::/user.slice/session-1.scope")):
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "cgroup").write_text(f"{text}\n")
        (tmp_path / pid / "stat").write_text(f"{pid} (a b) S 1 2\n")
    assert gpu_processes.list_container_pids(container_id, proc=tmp_path) == [42]
    (tmp_path / "42/stat").write_text("42 (a b) Z 1 2\n")
    assert gpu_processes.list_container_pids(container_id, proc=tmp_path) == []


SaveHeld = Callable[[int], None]


@pytest.fixture
def save_held(spark: FakeSpark, monkeypatch: pytest.MonkeyPatch) -> SaveHeld:
    """Let a server run, and return a function that stores the GiB that it held when it was verified."""
    attrs = {"Id": "server", "Name": "/qwen35", "State": {"Running": True}}
    monkeypatch.setattr("sparkwright.host.containers.containers.inspect", lambda client, name: attrs)
    monkeypatch.setattr(FakeSpark, "docker", lambda self: None)
    verified = {"spec": {"name": "qwen35"}, "container_id": "server"}
    return lambda held_gib: spark.state.write("verified", {**verified, "held_bytes": held_gib * GIB})


def test_memory_of_the_running_server_is_available(spark: FakeSpark, save_held: SaveHeld) -> None:
    args = AssertMemoryFits.Args(name="qwen35", utilization=0.85)
    assert "is unknown" in AssertMemoryFits().run(args, spark).msg
    save_held(90)
    result = AssertMemoryFits().run(args, spark)
    assert result.msg.startswith("2.0 of 120.0 GiB left: 113.0 GiB needed")
    sizes = {row["name"]: row["size_bytes"] // GIB for row in result.data["budget"]["rows"]}
    assert sizes == {"GPU's side": 102, "host's side": 7, "compile peak": 0, "the host itself": 5, "reserve": 4}
    save_held(70)
    result = AssertMemoryFits().run(args, spark)
    assert result.exit is Exit.REFUSED
    assert "95.0 GiB will be available (25.0 now, 70.0 held by the server, 0.0 by Ollama)" in result.msg


@pytest.mark.parametrize(("ollama_gib", "left_gib"), [(0, 37), (30, 7)])
def test_recorded_memory_is_limited_to_the_memory_of_the_host(
    spark: FakeSpark, save_held: SaveHeld, monkeypatch: pytest.MonkeyPatch, ollama_gib: int, left_gib: int
) -> None:
    """A crashed server holds nothing of its recorded memory, and models that Ollama keeps are not available."""
    model = SimpleNamespace(model=SimpleNamespace(size_bytes=ollama_gib * GIB))
    monkeypatch.setattr("sparkwright.host.ollama.inspect", lambda context: SimpleNamespace(held_models=[model]))
    save_held(10_000)
    args = AssertMemoryFits.Args(name="qwen35", utilization=0.6, ollama="leave")
    message = AssertMemoryFits().run(args, spark).msg
    assert message.startswith(f"{left_gib}.0 of 120.0 GiB left: 83.0 GiB needed")


def test_memory_that_a_dead_server_released_is_not_waited_for(spark: FakeSpark) -> None:
    """The record says what it held when it was verified; in a crash loop it holds nothing."""
    container = {"Id": "x", "State": {"Running": True}}
    spark.state.write("verified", {"spec": {"name": "qwen35"}, "container_id": "x", "held_bytes": 100 * GIB})
    spark.state.write("before_start", {"available_bytes": 110 * GIB, "run": "run-0"})
    for available, held in ((10, 100), (110, 0), (60, 50), (115, 0)):
        spark.memory_bytes["MemAvailable"] = available * GIB
        holders.record_stop(spark, container)
        assert holders.read_stop(spark)["held_bytes"] == held * GIB
        spark.memory_bytes["MemAvailable"] = max(available, 110) * GIB
        assert WaitMemoryReleased().run(WaitMemoryReleased.Args(timeout_s=0), spark).data["back"] is not False


def test_interim_server_does_not_change_the_memory_of_the_server(spark: FakeSpark) -> None:
    """The memory of the interim server was released when it was removed, and does not count."""
    container = {"Id": "x", "State": {"Running": True}}
    spark.state.write("verified", {"spec": {"name": "qwen35"}, "container_id": "x", "held_bytes": 7 * GIB})
    spark.state.write("interim", {"name": "qwen35", "gateways": [], "since": 1.0, "run": "run-0"})
    holders.record_available(spark, 106 * GIB)
    for is_removed, available in ((False, 99), (True, 106)):
        if is_removed:
            spark.state.remove("interim")
        spark.memory_bytes["MemAvailable"] = available * GIB
        holders.record_stop(spark, container)
        assert holders.read_stop(spark)["held_bytes"] == 7 * GIB
