"""The guard service watches real containers that allocate real memory.

Available memory is simulated, so that other processes of this machine do not matter. The guard of a start reads the kernel's
figures (test_start_guard.py).
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.guard import service
from sparkwright.guard.judge import GIB
from sparkwright.host.machine import Machine
from sparkwright.host.memory import service_guard, start_guard
from sparkwright.host.state import StateFolder
from tests.guard.hog import Hog, engine, hog, shell, wait_until_full
from tests.modules.context import RecordingContext
from tests.waiting import wait_until

__all__ = ["engine", "hog", "shell"]

StartService = Callable[..., subprocess.Popen[bytes]]
#: memory of the simulated host
TOTAL, AVAILABLE = 24 * GIB, 16 * GIB


class SimulatedMemory(threading.Thread):
    """Maintain a /proc/meminfo that counts only the memory of some containers."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self.root = root
        self.counted: list[Any] = []
        self.ended = threading.Event()
        self._files: dict[str, str] = {}
        (root / "proc").mkdir(parents=True)
        self._write()

    def run(self) -> None:
        while not self.ended.wait(0.02):
            self._write()

    def _write(self) -> None:
        used_bytes = sum(service.read_memory_bytes(self._file(item)) for item in self.counted)
        path = self.root / "proc/new"
        rows = {"MemTotal": TOTAL, "MemFree": AVAILABLE - used_bytes, "MemAvailable": AVAILABLE - used_bytes}
        path.write_text("".join(f"{name}: {size // 1024} kB\n" for name, size in rows.items()))
        path.replace(self.root / "proc/meminfo")

    def _file(self, container: Any) -> str:
        """Return the file with the memory of a container; empty until it runs."""
        if not self._files.get(container.id):
            container.reload()
            self._files[container.id] = service.find_memory_file(int(container.attrs["State"]["Pid"]))
        return self._files[container.id]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[SimulatedMemory]:
    simulated = SimulatedMemory(tmp_path / "root")
    simulated.start()
    yield simulated
    simulated.ended.set()
    simulated.join()


@pytest.fixture
def context(tmp_path: Path, memory: SimulatedMemory) -> RecordingContext:
    return RecordingContext(tmp_path, root=str(memory.root))


@pytest.fixture
def start_service(context: RecordingContext, memory: SimulatedMemory) -> Iterator[StartService]:
    """Yield a function that starts the guard service for containers.

    `room_gib` is the difference between the available memory and the floor, `tell` the command that is run after a kill.
    """
    processes: list[subprocess.Popen[bytes]] = []

    def start(*containers: Any, room_gib: float, tell: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        available = context.machine.meminfo()["MemAvailable"]
        rows = [f"left {available}", f"address {start_guard.engine_address(Machine())}", f"root {memory.root}"]
        rows.append(f"floor {available - int(room_gib * GIB)}")
        for container in containers:
            inspected = container.client.api.inspect_container(container.id)
            rows.append(f"server {container.name} {container.id} {inspected['State']['Pid']} {GIB}")
        rows += [f"tell {word}" for word in tell]
        folder = context.state.folder(start_guard.FOLDER)
        (folder / service.CONF_FILE).write_text("\n".join(rows) + "\n")
        command = [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(folder)]
        processes.append(subprocess.Popen(command, env={"MALLOC_ARENA_MAX": "1"}))
        wait_until(lambda: service_guard.is_running(context.state), "the guard")
        return processes[-1]

    yield start
    for process in processes:
        process.terminate()
        assert process.wait(30) == 0


def wait_for_action(context: RecordingContext) -> service_guard.GuardAction:
    wait_until(lambda: service_guard.list_actions(context.state), "an action")
    return service_guard.list_actions(context.state)[-1]


@pytest.mark.docker
def test_growing_container_is_killed_and_not_restarted_by_its_policy(
    context: RecordingContext, hog: Hog, start_service: StartService, memory: SimulatedMemory, tmp_path: Path
) -> None:
    marker = tmp_path / "told"
    steady, growing = hog(400, 32, "unless-stopped"), hog(600, 2600, "unless-stopped")
    memory.counted += [steady, growing]
    steady.start()
    wait_until_full(steady)
    growing.start()
    start_service(steady, growing, room_gib=1.2, tell=(sys.executable, "-c", f"open({str(marker)!r}, 'w')"))
    assert growing.wait(timeout=120)["StatusCode"] == 137
    action = wait_for_action(context)
    assert (action.name, action.container_id) == (growing.name, growing.id)
    assert "to save the host" in action.message
    assert service_guard.stop_reason(context.state, growing.id, 0) == action.message
    wait_until(marker.exists, "the health check")
    steady.reload()
    growing.reload()
    assert (steady.status, growing.status) == ("running", "exited")


@pytest.mark.docker
def test_leak_of_50_mb_per_second_is_stopped(
    context: RecordingContext, hog: Hog, start_service: StartService, memory: SimulatedMemory
) -> None:
    leaking = hog(50, 2600)
    memory.counted += [leaking]
    leaking.start()
    start_service(leaking, room_gib=0.6)
    assert leaking.wait(timeout=180)["StatusCode"] in (137, 143)
    assert wait_for_action(context).name == leaking.name
    assert b"full" not in leaking.logs()


@pytest.mark.docker
def test_steady_server_with_little_memory_left_keeps_running(
    context: RecordingContext, hog: Hog, start_service: StartService, memory: SimulatedMemory
) -> None:
    steady = hog(400, 64)
    memory.counted += [steady]
    steady.start()
    wait_until_full(steady)
    process = start_service(steady, room_gib=0.2)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    steady.reload()
    assert steady.status == "running"
    assert service_guard.list_actions(context.state) == []


@pytest.mark.docker
def test_service_leaves_a_start_to_its_own_guard(
    context: RecordingContext, hog: Hog, start_service: StartService, memory: SimulatedMemory
) -> None:
    serving, starting = hog(400, 32), hog(900, 2600)
    memory.counted += [serving, starting]
    serving.start()
    api = starting.client.api
    context.guards.floor_gib = context.machine.meminfo()["MemAvailable"] / GIB - 1.2
    context.guards.begin(context.machine, context.state, context.run_id, api.inspect_container(starting.id))
    start_service(serving, room_gib=0.7)
    starting.start()
    context.guards.set_process(api.inspect_container(starting.id))
    assert starting.wait(timeout=120)["StatusCode"] == 137
    wait_until(context.guards.find_danger, "the danger")
    context.guards.end()
    serving.reload()
    assert serving.status == "running"
    assert service_guard.list_actions(context.state) == []


def test_service_runs_once_and_without_servers(tmp_path: Path) -> None:
    state = StateFolder.in_home(tmp_path)
    folder = state.folder(start_guard.FOLDER)
    command = [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(folder)]
    first = subprocess.Popen(command)
    try:
        wait_until(lambda: service_guard.is_running(state), "the guard")
        assert subprocess.run(command, timeout=30).returncode == 0
        wait_until(lambda: service_guard.read_level(state).running, "its samples")
        service_guard.stop(state)
        assert first.wait(30) == 0
    finally:
        first.kill()
    assert not service_guard.is_running(state)


@pytest.mark.parametrize(("ago_s", "is_guarded"), [(0.5, True), (60.0, False)])
def test_service_waits_for_the_memory_of_a_killed_start(tmp_path: Path, ago_s: float, is_guarded: bool) -> None:
    (tmp_path / "run-1.ring").write_text(f"state killed\npid 1\nkilled {time.time() - ago_s:.3f}\n")
    assert service.is_start_guarded(str(tmp_path)) is is_guarded
