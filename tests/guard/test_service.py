"""The guard of the service over real containers of a real Docker Engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.guard.judge import GIB
from sparkwright.host.machine import Machine
from sparkwright.host.memory import service_guard, start_guard
from sparkwright.host.state import StateFolder
from tests.faults.bench import until
from tests.guard.hog import Hog, engine, hog, shell
from tests.modules.context import RecordingContext

__all__ = ["engine", "hog", "shell"]

Watch = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def context(tmp_path: Path) -> RecordingContext:
    return RecordingContext(tmp_path)


@pytest.fixture
def watch(context: RecordingContext, engine: docker.DockerClient) -> Iterator[Watch]:
    """Starts the guard of the service over containers. room_gib: below what is available now, where danger begins."""
    running: list[subprocess.Popen[bytes]] = []

    def start(
        *containers: Any, room_gib: float, floor: bool = True, tell: tuple[str, ...] = ()
    ) -> subprocess.Popen[bytes]:
        api: Any = engine.api
        available = context.machine.meminfo()["MemAvailable"]
        rows = [f"left {available}", f"address {start_guard.address_of(Machine())}"]
        rows += [f"floor {available - int(room_gib * GIB)}"] if floor else []
        for one in containers:
            found = api.inspect_container(one.id)
            rows.append(f"server {one.name} {one.id} {found['State']['Pid']} {GIB}")
        rows += [f"tell {word}" for word in tell]
        folder = context.state.folder(start_guard.FOLDER)
        (folder / service_guard.CONF).write_text("\n".join(rows) + "\n")
        words = [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(folder)]
        running.append(subprocess.Popen(words, env={"MALLOC_ARENA_MAX": "1"}))
        until(lambda: service_guard.running(context.state), "the guard")
        return running[-1]

    yield start
    for process in running:
        process.terminate()
        assert process.wait(30) == 0


@pytest.mark.docker
def test_the_container_that_grew_is_ended_and_not_started_again_by_its_policy(
    context: RecordingContext, engine: docker.DockerClient, hog: Hog, watch: Watch, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    quiet, grows = hog(400, 32, "unless-stopped"), hog(600, 2600, "unless-stopped")
    quiet.start()
    until(lambda: b"full" in quiet.logs(), "the quiet one")
    grows.start()
    watch(quiet, grows, room_gib=1.2, tell=(sys.executable, "-c", f"open({str(told)!r}, 'w')"))
    assert grows.wait(timeout=120)["StatusCode"] == 137
    act = until_act(context)
    assert (act.name, act.container_id) == (grows.name, grows.id)
    assert "to save the host" in act.sentence
    assert service_guard.of_container(context.state, grows.id, 0) == act.sentence
    until(told.exists, "the check that is started for it")
    for one in (quiet, grows):
        one.reload()
    assert (quiet.status, grows.status) == ("running", "exited")


def until_act(context: RecordingContext) -> service_guard.Act:
    until(lambda: service_guard.acts(context.state), "an act")
    return service_guard.acts(context.state)[-1]


@pytest.mark.docker
def test_a_leak_of_50_mb_a_second_is_caught(
    context: RecordingContext, engine: docker.DockerClient, hog: Hog, watch: Watch
) -> None:
    leaks = hog(50, 2600)
    leaks.start()
    watch(leaks, room_gib=0.6)
    assert leaks.wait(timeout=180)["StatusCode"] in (137, 143)
    assert until_act(context).name == leaks.name
    assert b"full" not in leaks.logs()


@pytest.mark.docker
def test_a_steady_server_with_little_left_is_not_touched(
    context: RecordingContext, engine: docker.DockerClient, hog: Hog, watch: Watch
) -> None:
    steady = hog(400, 64)
    steady.start()
    until(lambda: b"full" in steady.logs(), "all that it takes")
    process = watch(steady, room_gib=4)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(3)
    steady.reload()
    assert steady.status == "running"
    assert service_guard.acts(context.state) == []


@pytest.mark.docker
def test_it_leaves_a_start_to_the_guard_of_that_start(
    context: RecordingContext, engine: docker.DockerClient, hog: Hog, watch: Watch
) -> None:
    serving, starts = hog(400, 32), hog(900, 2600)
    serving.start()
    api: Any = engine.api
    context.guards.floor_gib = context.machine.meminfo()["MemAvailable"] / GIB - 1.2
    context.guards.begin(context.machine, context.state, context.run_id, api.inspect_container(starts.id))
    watch(serving, room_gib=0.7)
    starts.start()
    context.guards.runs(api.inspect_container(starts.id))
    assert starts.wait(timeout=120)["StatusCode"] == 137
    until(context.guards.danger, "the guard's word")
    context.guards.end()
    serving.reload()
    assert serving.status == "running"
    assert service_guard.acts(context.state) == []


def test_there_is_one_and_it_needs_no_server_yet(tmp_path: Path) -> None:
    state = StateFolder.of(tmp_path)
    folder = state.folder(start_guard.FOLDER)
    words = [sys.executable, "-I", "-S", start_guard.PROGRAM, "service", str(folder)]
    first = subprocess.Popen(words)
    try:
        until(lambda: service_guard.running(state), "the guard")
        assert subprocess.run(words, timeout=30).returncode == 0
        until(lambda: service_guard.level(state).running, "its samples")
        service_guard.end(state)
        assert first.wait(30) == 0
    finally:
        first.kill()
    assert not service_guard.running(state)
