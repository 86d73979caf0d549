"""The guard of the service over real containers of a real Docker Engine, which take real memory.

Available memory is computed as if no other process used the host: with other tests running, the same floor would be passed by
their memory, or never reached. The guard of a start, whose tests take seconds, reads the kernel's own figures
(test_start_guard.py).
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.guard import service
from sparkwright.guard.judge import GIB
from sparkwright.host.machine import Machine
from sparkwright.host.memory import service_guard, start_guard
from sparkwright.host.state import StateFolder
from tests.guard.hog import Hog, engine, hog, shell
from tests.modules.context import RecordingContext
from tests.waiting import wait_until

__all__ = ["engine", "hog", "shell"]

StartWatch = Callable[..., subprocess.Popen[bytes]]
#: of the host as the guard sees it
TOTAL, AVAILABLE = 24 * GIB, 16 * GIB


class SimulatedMemory(threading.Thread):
    """Maintain a /proc/meminfo that counts only the memory of some containers, by their cgroups."""

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
        new = self.root / "proc/new"
        rows = {"MemTotal": TOTAL, "MemFree": AVAILABLE - used_bytes, "MemAvailable": AVAILABLE - used_bytes}
        new.write_text("".join(f"{name}: {size // 1024} kB\n" for name, size in rows.items()))
        new.replace(self.root / "proc/meminfo")

    def _file(self, container: Any) -> str:
        """Return the counter file of a container's memory; empty until it runs."""
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
def watch(context: RecordingContext, engine: docker.DockerClient, memory: SimulatedMemory) -> Iterator[StartWatch]:
    """Yield a function that starts the guard of the service over containers.

    `room_gib` is the distance from the available memory to the floor.
    """
    running: list[subprocess.Popen[bytes]] = []

    def start(
        *containers: Any, room_gib: float, floor: bool = True, tell: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        api: Any = engine.api
        available = context.machine.meminfo()["MemAvailable"]
        rows = [f"left {available}", f"address {start_guard.engine_address(Machine())}", f"root {memory.root}"]
        rows += [f"floor {available - int(room_gib * GIB)}"] if floor else []
        for container in containers:
            inspected = api.inspect_container(container.id)
            rows.append(f"server {container.name} {container.id} {inspected['State']['Pid']} {GIB}")
        rows += [f"tell {word}" for word in tell]
        folder = context.state.folder(start_guard.FOLDER)
        (folder / service_guard.CONF).write_text("\n".join(rows) + "\n")
        command = [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(folder)]
        running.append(subprocess.Popen(command, env={"MALLOC_ARENA_MAX": "1"}))
        wait_until(lambda: service_guard.is_running(context.state), "the guard")
        return running[-1]

    yield start
    for process in running:
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.docker
def test_growing_container_is_killed_and_not_restarted_by_its_policy(
    context: RecordingContext,
    engine: docker.DockerClient,
    hog: Hog,
    watch: StartWatch,
    memory: SimulatedMemory,
    tmp_path: Path,
) -> None:
    message = tmp_path / "told"
    quiet, grows = hog(400, 32, "unless-stopped"), hog(600, 2600, "unless-stopped")
    memory.counted += [quiet, grows]
    quiet.start()
    wait_until(lambda: b"full" in quiet.logs(), "the quiet one")
    grows.start()
    watch(quiet, grows, room_gib=1.2, tell=(sys.executable, "-c", f"open({str(message)!r}, 'w')"))
    assert grows.wait(timeout=120)["StatusCode"] == 137
    act = wait_for_action(context)
    assert (act.name, act.container_id) == (grows.name, grows.id)
    assert "to save the host" in act.sentence
    assert service_guard.stop_reason(context.state, grows.id, 0) == act.sentence
    wait_until(message.exists, "the check that is started for it")
    for item in (quiet, grows):
        item.reload()
    assert (quiet.status, grows.status) == ("running", "exited")


def wait_for_action(context: RecordingContext) -> service_guard.GuardAction:
    wait_until(lambda: service_guard.list_actions(context.state), "an act")
    return service_guard.list_actions(context.state)[-1]


@pytest.mark.docker
def test_leak_of_50_mb_per_second_is_stopped(
    context: RecordingContext, engine: docker.DockerClient, hog: Hog, watch: StartWatch, memory: SimulatedMemory
) -> None:
    leaks = hog(50, 2600)
    memory.counted += [leaks]
    leaks.start()
    watch(leaks, room_gib=0.6)
    assert leaks.wait(timeout=180)["StatusCode"] in (137, 143)
    assert wait_for_action(context).name == leaks.name
    assert b"full" not in leaks.logs()


@pytest.mark.docker
def test_steady_server_with_little_memory_left_keeps_running(
    context: RecordingContext, engine: docker.DockerClient, hog: Hog, watch: StartWatch, memory: SimulatedMemory
) -> None:
    steady = hog(400, 64)
    memory.counted += [steady]
    steady.start()
    wait_until(lambda: b"full" in steady.logs(), "all that it takes")
    process = watch(steady, room_gib=0.2)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    steady.reload()
    assert steady.status == "running"
    assert service_guard.list_actions(context.state) == []


@pytest.mark.docker
def test_service_leaves_a_start_to_its_own_guard(
    context: RecordingContext, engine: docker.DockerClient, hog: Hog, watch: StartWatch, memory: SimulatedMemory
) -> None:
    serving, starts = hog(400, 32), hog(900, 2600)
    memory.counted += [serving, starts]
    serving.start()
    api: Any = engine.api
    context.guards.floor_gib = context.machine.meminfo()["MemAvailable"] / GIB - 1.2
    context.guards.begin(context.machine, context.state, context.run_id, api.inspect_container(starts.id))
    watch(serving, room_gib=0.7)
    starts.start()
    context.guards.set_process(api.inspect_container(starts.id))
    assert starts.wait(timeout=120)["StatusCode"] == 137
    wait_until(context.guards.find_danger, "the guard's word")
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


@pytest.mark.parametrize(("ago_s", "starting"), [(0.5, True), (60.0, False)])
def test_service_waits_for_the_memory_of_a_killed_start(tmp_path: Path, ago_s: float, starting: bool) -> None:
    (tmp_path / "run-1.ring").write_text(f"state killed\npid 1\nkilled {time.time() - ago_s:.3f}\n")
    assert service.is_start_guarded(str(tmp_path)) is starting
