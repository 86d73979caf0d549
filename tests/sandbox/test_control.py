"""Start, stop and status of the sandbox, and the program that occupies a port."""

import json
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sparkwright.errors import Refused
from sparkwright.host.runs import lock
from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from tests.remote.sshd import free_port
from tests.waiting import wait_until


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    pair = Path(tempfile.mkdtemp(prefix="spark-")), Path(tempfile.mkdtemp(prefix="spark-"))
    yield pair
    for folder in pair:
        control.down(folder)
        shutil.rmtree(folder, ignore_errors=True)


def read_pid(folder: Path) -> int:
    return int(json.loads((folder / "state.json").read_text())["pid"])


def test_a_reused_pid_of_another_sandbox_is_ignored(folders: tuple[Path, Path]) -> None:
    own, other = folders
    control.up(other)
    shutil.copy(other / "state.json", own / "state.json")  # as if the other sandbox got the pid after a reboot
    assert control.status(own) == {"sandbox": "down"}
    env = control.up(own)
    assert read_pid(own) != read_pid(other) and str(own) in env["DOCKER_HOST"]
    control.down(own)
    assert psutil.pid_exists(read_pid(other))
    assert control.status(other)["sandbox"] == "up"


def test_a_killed_sandbox_is_down(folders: tuple[Path, Path]) -> None:
    own, _ = folders
    control.up(own)
    process = psutil.Process(read_pid(own))
    process.kill()
    process.wait(5)
    assert control.status(own) == {"sandbox": "down"}
    control.up(own)
    assert control.status(own)["sandbox"] == "up"


def test_status_lists_running_linked_hosts(folders: tuple[Path, Path]) -> None:
    own, _ = folders
    linked = own / control.HOSTS_FOLDER / "side1"
    control.up(linked)
    assert control.status(own) == {"sandbox": "down", "hosts": "up: side1"}
    control.down(linked)
    assert control.status(own) == {"sandbox": "down"}


def find_listener(port: int) -> psutil.Process | None:
    connections = psutil.net_connections("tcp")
    listeners = [row for row in connections if row.status == "LISTEN" and row.laddr and row.laddr.port == port]
    return psutil.Process(listeners[0].pid) if listeners else None


def occupy_port(folder: Path) -> int:
    """Start a sandbox with the fault `port-taken`, and return the port."""
    control.up(folder)
    port = free_port()
    (folder / "serve_port").write_text(str(port))
    control.set_fault(folder, "port-taken")
    return port


def test_port_taken_occupies_the_port_in_a_named_process(folders: tuple[Path, Path]) -> None:
    own, _ = folders
    port = occupy_port(own)
    process = find_listener(port)
    assert process is not None and process.name() == "port-squatter" and process.pid != read_pid(own)
    control.set_fault(own, None)
    assert find_listener(port) is None and not process.is_running()


def test_the_port_is_free_after_the_sandbox_has_stopped(folders: tuple[Path, Path]) -> None:
    own, _ = folders
    port = occupy_port(own)
    control.down(own)
    wait_until(lambda: find_listener(port) is None)


def test_down_kills_the_run_that_holds_the_lock(folders: tuple[Path, Path]) -> None:
    own, _ = folders
    control.up(own)
    with subprocess.Popen(["sleep", "600"]) as run:
        owner = lock.LockOwner("deploy", "u@laptop", "run", run.pid, time.time())
        with lock.acquire(StateFolder.in_home(own / "home"), owner, host="sandbox"):
            control.down(own)
        assert run.wait(10) == -signal.SIGKILL


def test_the_fault_ollama_loads_loads_a_model(folders: tuple[Path, Path]) -> None:
    own, _ = folders
    url = f"http://{control.up(own)['OLLAMA_HOST']}/api/ps"
    control.set_fault(own, "ollama-loads")

    def list_loaded() -> list[str]:
        with urllib.request.urlopen(url, timeout=30) as response:
            return [model["name"] for model in json.load(response)["models"]]

    wait_until(lambda: "gpt-oss:20b" in list_loaded(), "the model that the fault loads")


@pytest.mark.parametrize("name", ["hash#tag", "why?", "new\nline"])
def test_a_folder_that_docker_cannot_address_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(Refused, match=r"contains #, \? or a control character. Set SPARKWRIGHT_SANDBOX"):
        control.up(tmp_path / name)


def test_a_folder_that_is_too_long_for_a_socket_in_bytes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is too long for a unix socket"):
        control.up(Path("/tmp") / ("ü" * 50))
