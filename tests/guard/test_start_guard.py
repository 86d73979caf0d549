"""The guard of a start watches real containers that allocate real memory."""

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.guard import samples as memory_samples
from sparkwright.guard.judge import GIB
from tests.guard.hog import Hog, engine, hog, shell, wait_until_full
from tests.modules.context import RecordingContext
from tests.waiting import wait_until

__all__ = ["engine", "hog", "shell"]

#: limit of a container's memory in MiB; the floor is ROOM_GIB below the available memory
MAX_MIB, ROOM_GIB = 3000, 1.5


@pytest.fixture
def context(tmp_path: Path) -> Iterator[RecordingContext]:
    recording = RecordingContext(tmp_path)
    yield recording
    recording.guards.end()


@pytest.fixture
def busy_processors() -> Iterator[None]:
    """Run four processes that use all CPU time."""
    command = [sys.executable, "-I", "-S", "-c", "while True: pass"]
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            process = subprocess.Popen(command)
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def start_guarded(
    context: RecordingContext, container: Any, *, room_gib: float = ROOM_GIB, set_process: bool = True
) -> None:
    """Start a container with a guard, like the modules do."""
    api = container.client.api
    context.guards.floor_gib = context.machine.meminfo()["MemAvailable"] / GIB - room_gib
    context.guards.begin(context.machine, context.state, context.run_id, api.inspect_container(container.id))
    container.start()
    if set_process:
        context.guards.set_process(api.inspect_container(container.id))


def close_stdin(context: RecordingContext) -> subprocess.Popen[bytes]:
    """Close the connection to the guard, like the end of its run does, and return its process."""
    assert context.guards.current is not None and context.guards.current.process.stdin is not None
    context.guards.current.process.stdin.close()
    return context.guards.current.process


def read_header(context: RecordingContext) -> dict[str, str]:
    assert context.guards.current is not None
    return memory_samples.read(str(context.guards.current.ring_path))[0]


@pytest.mark.docker
def test_container_is_killed_on_a_busy_machine(context: RecordingContext, hog: Hog, busy_processors: None) -> None:
    container = hog(3072, MAX_MIB)
    start_guarded(context, container)
    assert container.wait(timeout=120)["StatusCode"] == 137
    wait_until(context.guards.find_danger, "the danger")
    assert b"full" not in container.logs()
    wait_until(lambda: read_header(context).get("state") == "killed", "the end of the guard")
    assert (read_header(context)["by_engine"], read_header(context)["by_process"]) == ("sent", "sent")
    sentence = context.guards.describe_danger()
    assert "was stopped to save the host" in sentence
    assert "GiB available" in sentence
    assert context.events == []


@pytest.mark.docker
def test_container_is_killed_without_an_answer_of_the_engine(
    context: RecordingContext, hog: Hog, tmp_path: Path
) -> None:
    """The socket of a stopped engine accepts requests and never answers."""
    address = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(address))
        silent.listen()
        context.machine = RecordingContext(tmp_path, docker_host=f"unix://{address}").machine
        container = hog(3072, MAX_MIB)
        start_guarded(context, container)
        assert container.wait(timeout=120)["StatusCode"] == 137
        connection, _ = silent.accept()
        with connection:
            request = connection.recv(4096).decode()
    assert request.startswith(f"POST /containers/{container.id}/kill?signal=KILL HTTP/1.1\r\n")


@pytest.mark.docker
def test_kill_needs_no_access_to_the_process(context: RecordingContext, hog: Hog) -> None:
    """For a user who may not kill root's processes, the engine's socket is enough."""
    container = hog(3072, MAX_MIB)
    start_guarded(context, container, set_process=False)
    assert container.wait(timeout=120)["StatusCode"] == 137
    wait_until(context.guards.find_danger, "the danger")


@pytest.mark.docker
def test_server_above_the_floor_keeps_running(context: RecordingContext, hog: Hog) -> None:
    container = hog(400, 256)
    start_guarded(context, container, room_gib=6)
    wait_until_full(container)
    wait_until(lambda: "lowest" in read_header(context), "a flush")
    verified = context.guards.end_verified()
    container.reload()
    assert container.status == "running"
    assert verified is not None
    assert 0 < verified.lowest_bytes <= verified.first_bytes
    assert context.guards.find_danger() is None


@pytest.mark.docker
def test_guard_outlives_the_run(context: RecordingContext, hog: Hog) -> None:
    container = hog(100, 32)
    start_guarded(context, container, room_gib=8)
    wait_until_full(container)
    process = close_stdin(context)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    container.kill()
    process.wait(30)
    assert read_header(context)["state"] == "ended"


def test_guard_ends_if_the_container_has_already_ended(context: RecordingContext) -> None:
    container = {"Id": "0" * 64, "Name": "/short", "State": {"Running": False, "Pid": 0}}
    context.guards.begin(context.machine, context.state, context.run_id, container)
    context.guards.set_process(container)
    assert close_stdin(context).wait(30) == 0
    assert read_header(context)["state"] == "ended"


def test_busy_run_does_not_delay_the_samples(context: RecordingContext) -> None:
    """The threads of a run may block in a read or hold the interpreter, because the guard is another process."""
    released = threading.Event()
    context.guards.begin(context.machine, context.state, context.run_id, {})
    blocked = threading.Thread(target=released.wait)
    blocked.start()
    sum(range(20_000_000))  # holds the interpreter most of the time
    released.set()
    blocked.join()
    guard = context.guards.current
    assert guard is not None
    context.guards.end()
    _, samples = memory_samples.read(str(guard.ring_path))
    assert len(samples) >= 5 * (samples[-1][0] - samples[0][0])


def test_failed_guard_is_reported_and_the_start_continues(context: RecordingContext) -> None:
    context.machine = RecordingContext(context.machine.home, root="/nonexistent").machine
    context.guards.note = context.note
    context.guards.begin(context.machine, context.state, context.run_id, {"Id": "0" * 64, "Name": "/one"})
    assert ["the memory is not guarded" in item["text"] for item in context.events] == [True]
    assert context.guards.current is None
    assert context.guards.find_danger() is None
