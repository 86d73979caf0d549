"""The link to this machine: a runner with much standard error, a runner that exits early, and the runner's imports."""

import os
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Unreachable
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event
from sparkwright.remote.local import LocalLink
from tests.waiting import wait_until

VERBOSE_RUNNER = """#!/bin/sh
read request
head -c 1000000 /dev/zero | tr '\\0' x >&2
echo '{"event": "alive"}'
"""
EXITING_RUNNER = """#!/bin/sh
exec <&-
echo "no room left" >&2
exit 3
"""


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The program in place of the interpreter, which the test writes."""
    program = tmp_path / "python"
    program.touch(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def query_host(**header: Any) -> list[Event]:
    with closing(LocalLink(Host("here", "here", connection="local"))) as link:
        return list(link.request({"verb": "x", **header}, {}))


def test_runner_with_much_standard_error_is_read_to_the_end(runner: Path) -> None:
    runner.write_text(VERBOSE_RUNNER)
    events: list[Event] = []
    thread = threading.Thread(target=lambda: events.extend(query_host()), daemon=True)
    thread.start()
    thread.join(20)
    assert [item["event"] for item in events] == ["alive"]


def test_early_exit_of_a_runner_is_reported_with_its_error(runner: Path) -> None:
    runner.write_text(EXITING_RUNNER)
    with pytest.raises(Unreachable, match="the runner exited with 3: no room left"):
        query_host(plan="y" * 10_000_000)


def test_finished_requests_leave_no_open_files(runner: Path) -> None:
    """A program that uses the API for days keeps its links until the next garbage collection."""
    runner.write_text(VERBOSE_RUNNER)
    with closing(LocalLink(Host("here", "here", connection="local"))) as link:
        list(link.request({"verb": "x"}, {}))
        open_files = len(list(Path("/dev/fd").iterdir()))
        for _ in range(3):
            list(link.request({"verb": "x"}, {}))
        wait_until(lambda: len(list(Path("/dev/fd").iterdir())) <= open_files, "the end of the open files")


def test_runner_imports_nothing_from_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder may be an untrusted project: its json.py is not run."""
    for name in ("json.py", "sparkwright.py"):
        (tmp_path / name).write_text("raise SystemExit('owned')\n")
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert [item["event"] for item in query_host(verb="lock")] == ["lock"]


def test_docker_sdk_is_imported_without_paramiko(tmp_path: Path) -> None:
    """Importing paramiko would double the time, and a local socket needs no ssh."""
    completed = subprocess.run(
        [sys.executable, "-X", "importtime", "-P", "-m", "sparkwright.runner.main"],
        input=b'{"verb": "ask", "module": "diagnose", "args": {"container": "qwen35"}}\n',
        env={**os.environ, "HOME": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/docker.sock"},
        capture_output=True,
        check=True,
    )
    imported = {line.rpartition(b"|")[2].strip() for line in completed.stderr.splitlines()}
    assert b"docker.errors" in imported and b"paramiko.transport" not in imported
