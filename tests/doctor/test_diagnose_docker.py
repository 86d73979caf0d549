"""`diagnose` of a server in a real Docker Engine: Docker reports its exit, and its last line is escaped and shortened."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError

from tests import docker_image
from tests.host.containers.test_log_reader import engine
from tests.remote.sshd import free_port
from tests.waiting import wait_until

__all__ = ["engine"]

TOP = Path(__file__).parent.parent.parent
MAX_LINE_LENGTH = 400
HOSTILE_LINE = "RuntimeError: it broke \\033]0;owned\\007\\033[2J \\342\\200\\256 [bold]x[/bold] "
pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def image(engine: Any) -> Iterator[str]:
    """An image with this machine's shell and sleep."""
    with docker_image.temporary_image(engine, ("/bin/sh", "/bin/sleep")) as name:
        yield name


class DiagnosedHost:
    """A project with this machine as its only host, and a container with the name of its recipe's server."""

    def __init__(self, folder: Path, engine: Any, image: str) -> None:
        self.root, self._engine, self._image = folder, engine, image
        self.name, self.port = f"sparkwright-test-{uuid.uuid4().hex[:12]}", free_port()
        for item in ("hosts", "recipes", "playbooks"):
            shutil.copytree(TOP / item, folder / item)
        (folder / "hosts/here.yml").write_text(f"connection: local\nrecipe: llama-3.1-8b\nserve_port: {self.port}\n")
        recipe = folder / "recipes/llama-3.1-8b.yml"
        text, count = re.subn("^  name:.*$", f"  name: {self.name}", recipe.read_text(), flags=re.M)
        assert count == 1
        recipe.write_text(text)

    def start_server(self, script: str, **options: Any) -> Any:
        ports = {"8000/tcp": ("127.0.0.1", self.port)}
        words = ["/bin/sh", "-c", script]
        return self._engine.containers.run(self._image, words, name=self.name, detach=True, ports=ports, **options)

    def diagnose(self, *words: str) -> tuple[int, str]:
        home = self.root / "home"
        home.mkdir(exist_ok=True)
        env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(TOP / "src")}
        env.pop("COLUMNS", None)  # without a known width, no line is wrapped
        program = "from sparkwright.cli import main; main()"
        command = [sys.executable, "-c", program, "diagnose", "--host", "here", *words]
        result = subprocess.run(
            command, cwd=self.root, env=env, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
        )
        assert result.stdout, result.stderr
        return result.returncode, result.stdout


@pytest.fixture
def host(engine: Any, image: str, tmp_path: Path) -> Iterator[DiagnosedHost]:
    diagnosed = DiagnosedHost(tmp_path, engine, image)
    yield diagnosed
    for container in engine.containers.list(all=True, filters={"name": diagnosed.name}):
        container.remove(force=True)


def test_the_last_line_of_an_exited_container_is_escaped_and_shortened(host: DiagnosedHost) -> None:
    long = "y" * 3000
    container = host.start_server(f"printf 'loading\\n{HOSTILE_LINE}{long}\\n'; exit 1")
    assert container.wait(timeout=60)["StatusCode"] == 1
    code, output = host.diagnose()
    first = output.splitlines()[0]
    assert code == 1
    assert first.startswith(f"no server answers: {host.name} exited (1) ")
    assert ' s ago, its last log line: "RuntimeError: it broke ' in first
    assert "[bold]x[/bold]" in first
    assert len(first) < MAX_LINE_LENGTH and "more characters)" in first
    assert not [c for c in output if (ord(c) < 32 and c != "\n") or c in "\x7f\u202e"]

    code, text = host.diagnose("--json")
    row = json.loads(text)
    assert (code, row["exit"], row["state"], row["summary"].startswith("no server answers")) == (1, 1, "down", True)
    assert row["container"].pop("started_s")
    assert row["container"] == {"name": host.name, "status": "exited", "exit_code": 1, "restarts": 0}


def test_a_crash_loop_is_reported_with_the_last_line_of_the_previous_start(host: DiagnosedHost) -> None:
    script = "echo 'ValueError: no such model'; exit 3"
    container = host.start_server(script, restart_policy={"Name": "unless-stopped"})
    wait_until(lambda: (container.reload() or container.attrs["RestartCount"]) >= 3)
    code, output = host.diagnose()
    first = output.splitlines()[0]
    assert code == 1
    assert re.match(rf"no server answers: crash loop: {host.name} exited (\(3\) )?", first), first
    assert first.endswith(' restarts so far, its last log line: "ValueError: no such model"')


def test_a_running_container_without_a_server_is_starting(host: DiagnosedHost) -> None:
    host.start_server("echo loading; exec sleep 600")
    code, output = host.diagnose()
    assert (code, output.startswith(f"no server answers yet: {host.name} has been starting for ")) == (4, True), output


def test_the_error_of_a_failed_start_is_reported(host: DiagnosedHost) -> None:
    with socket.create_server(("127.0.0.1", host.port)), pytest.raises(APIError):
        host.start_server("exec sleep 600")
    code, output = host.diagnose()
    assert code == 1
    assert output.startswith(f"no server answers: {host.name} was created but never started: "), output
    assert str(host.port) in output.splitlines()[0]
