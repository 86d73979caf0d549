"""The guard kills only the container with the given full id, and processes in its cgroup."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.guard.kill import Target

ID = "0123456789abcdef" * 4


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a process outside the container."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def test_reused_pid_is_not_killed(bystander: subprocess.Popen[bytes]) -> None:
    target = Target(ID, "")
    assert not target.hold_process(bystander.pid)
    assert target.kill_processes() == "its process is not known"
    assert target.has_ended
    assert bystander.poll() is None


@pytest.mark.parametrize("name", ["qwen35", "", ID[:12], f"{ID}/../x", "g" * 63 + "/", f"{ID[:-2]}\r\n"])
def test_only_full_container_ids_are_accepted(name: str) -> None:
    with pytest.raises(ValueError, match="no container id"):
        Target(name, "")


def test_restarted_engine_is_reached_over_a_new_connection(tmp_path: Path) -> None:
    address = tmp_path / "engine.sock"

    def start_engine() -> socket.socket:
        address.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(address))
        listener.listen()
        return listener

    first = start_engine()
    target = Target(ID, str(address))
    connection, _ = first.accept()
    connection.close()
    first.close()
    with start_engine() as second:
        assert target.kill_by_engine() == ""
        connection, _ = second.accept()
        with connection:
            assert connection.recv(4096).startswith(f"POST /containers/{ID}/kill?signal=KILL HTTP/1.1\r\n".encode())


def test_missing_engine_is_reported(tmp_path: Path) -> None:
    assert Target(ID, str(tmp_path / "nothing")).kill_by_engine() == "no connection to the Docker Engine"
