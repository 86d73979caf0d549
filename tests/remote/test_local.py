"""The link to this machine: a runner with much standard error, a runner that exits early, and the runner's imports."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.errors import Unreachable
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event
from sparkwright.remote.local import LocalLink

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
def link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[LocalLink]:
    """A link for which the parameter's text is the program in place of the interpreter."""
    program = tmp_path / "python"
    program.write_text(request.param)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    value = LocalLink(Host("here", "here", connection="local"))
    yield value
    value.close()


@pytest.mark.parametrize("link", [VERBOSE_RUNNER], indirect=True, ids=["verbose"])
def test_runner_with_much_standard_error_is_read_to_the_end(link: LocalLink) -> None:
    events: list[Event] = []
    thread = threading.Thread(target=lambda: events.extend(link.request({"verb": "x"}, {})), daemon=True)
    thread.start()
    thread.join(20)
    assert [item["event"] for item in events] == ["alive"]


@pytest.mark.parametrize("link", [EXITING_RUNNER], indirect=True, ids=["exiting"])
def test_early_exit_of_a_runner_is_reported_with_its_error(link: LocalLink) -> None:
    with pytest.raises(Unreachable, match="the runner exited with 3: no room left"):
        list(link.request({"verb": "x", "plan": "y" * 10_000_000}, {}))


def test_runner_imports_nothing_from_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder may be an untrusted project: its json.py is not run."""
    for name in ("json.py", "sparkwright.py"):
        (tmp_path / name).write_text("raise SystemExit('owned')\n")
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    link = LocalLink(Host("here", "here", connection="local"))
    assert [item["event"] for item in link.request({"verb": "lock"}, {})] == ["lock"]


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
