"""The running sandbox is identified exactly, and so is the program that occupies a port."""

import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sparkwright.sandbox import control
from tests.remote.sshd import free_port


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    both = Path(tempfile.mkdtemp(prefix="spark-")), Path(tempfile.mkdtemp(prefix="spark-"))
    yield both
    for item in both:
        control.down(item)
        shutil.rmtree(item, ignore_errors=True)


def read_pid(folder: Path) -> int:
    return int(json.loads((folder / "state.json").read_text())["pid"])


def test_a_pid_that_now_is_another_sandboxs_is_not_taken_for_this_one(folders: tuple[Path, Path]) -> None:
    mine, other = folders
    control.up(other)
    shutil.copy(other / "state.json", mine / "state.json")  # as after a reboot that gave the pid to the other one
    assert control.status(mine) == {"sandbox": "down"}
    env = control.up(mine)
    assert read_pid(mine) != read_pid(other) and str(mine) in env["DOCKER_HOST"]
    control.down(mine)
    assert psutil.pid_exists(read_pid(other))
    assert control.status(other)["sandbox"] == "up"


def test_a_sandbox_that_was_killed_is_down(folders: tuple[Path, Path]) -> None:
    mine, _ = folders
    control.up(mine)
    process = psutil.Process(read_pid(mine))
    process.kill()
    process.wait(5)
    assert control.status(mine) == {"sandbox": "down"}
    control.up(mine)
    assert control.status(mine)["sandbox"] == "up"


def find_listener(port: int) -> psutil.Process | None:
    rows = [
        net_connection
        for net_connection in psutil.net_connections("tcp")
        if net_connection.status == "LISTEN" and net_connection.laddr.port == port
    ]
    return psutil.Process(rows[0].pid) if rows else None


def test_a_taken_port_is_held_by_a_process_with_a_name_of_its_own(folders: tuple[Path, Path]) -> None:
    mine, _ = folders
    control.up(mine)
    port = free_port()
    (mine / "serve_port").write_text(str(port))
    control.set_fault(mine, "port-taken")
    process = find_listener(port)
    assert process is not None and process.name() == "port-squatter" and process.pid != read_pid(mine)
    control.set_fault(mine, None)
    assert find_listener(port) is None and not process.is_running()


def test_the_squatter_goes_with_its_sandbox(folders: tuple[Path, Path]) -> None:
    mine, _ = folders
    control.up(mine)
    port = free_port()
    (mine / "serve_port").write_text(str(port))
    control.set_fault(mine, "port-taken")
    control.down(mine)
    end_s = time.monotonic() + 30
    while find_listener(port) is not None and time.monotonic() < end_s:
        time.sleep(0.05)
    assert find_listener(port) is None
