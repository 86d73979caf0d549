"""`diagnose` of a server in a real Docker Engine: Docker reports its exit, and its last line is shown safely and bounded."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import docker_image
from tests.remote.sshd import free_port

TOP = Path(__file__).parent.parent.parent
LIMIT = 400
NASTY = "RuntimeError: it broke \\033]0;owned\\007\\033[2J \\342\\200\\256 [bold]x[/bold] "
pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    import docker

    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker Engine here")
    client = docker.DockerClient(timeout=60)
    yield client
    client.close()


@pytest.fixture(scope="module")
def shell(engine: Any) -> Iterator[str]:
    """Create an image with this machine's shell and sleep, and nothing else."""
    with docker_image.temporary_image(engine, ("/bin/sh", "/bin/sleep")) as name:
        yield name


class DiagnosedHost:
    """A project whose one host is this machine, and a container with its recipe's name."""

    def __init__(self, folder: Path, engine: Any, image: str) -> None:
        self.root, self._engine, self._image = folder, engine, image
        self.name, self.port = f"sparkwright-test-{uuid.uuid4().hex[:12]}", free_port()
        for item in ("hosts", "recipes", "playbooks"):
            shutil.copytree(TOP / item, folder / item)
        (folder / "hosts/here.yml").write_text(f"connection: local\nrecipe: llama-3.1-8b\nserve_port: {self.port}\n")
        recipe = folder / "recipes/llama-3.1-8b.yml"
        lines = [
            f"  name: {self.name}" if line.startswith("  name:") else line for line in recipe.read_text().splitlines()
        ]
        assert f"  name: {self.name}" in lines
        recipe.write_text("\n".join(lines) + "\n")

    def serve(self, script: str, **more: Any) -> Any:
        ports = {"8000/tcp": ("127.0.0.1", self.port)}
        words = ["/bin/sh", "-c", script]
        return self._engine.containers.run(self._image, words, name=self.name, detach=True, ports=ports, **more)

    def diagnose(self, *words: str) -> tuple[int, str]:
        home = self.root / "home"
        home.mkdir(exist_ok=True)
        env = {**os.environ, "HOME": str(home), "PYTHONPATH": str(TOP / "src")}
        env.pop("COLUMNS", None)  # in a pipe of unknown width no sentence is wrapped
        program = "from sparkwright.cli import main; main()"
        result = subprocess.run(
            [sys.executable, "-c", program, "diagnose", "--host", "here", *words],
            cwd=self.root,
            env=env,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert result.stdout, result.stderr
        return result.returncode, result.stdout


@pytest.fixture
def host(engine: Any, shell: str, tmp_path: Path) -> Iterator[DiagnosedHost]:
    value = DiagnosedHost(tmp_path, engine, shell)
    yield value
    for container in engine.containers.list(all=True, filters={"name": value.name}):
        container.remove(force=True)


def test_the_last_line_of_one_that_exited_is_quoted_visible_and_bounded(host: DiagnosedHost) -> None:
    long = "y" * 3000
    value = host.serve(f"printf 'loading\\n{NASTY}{long}\\n'; exit 1")
    assert value.wait(timeout=60)["StatusCode"] == 1
    code, output = host.diagnose()
    first = output.splitlines()[0]
    assert code == 1
    assert first.startswith(f"no server answers: {host.name} exited (1) ")
    assert ' s ago, its last line: "RuntimeError: it broke ' in first
    assert "[bold]x[/bold]" in first
    assert len(first) < LIMIT and "more characters)" in first
    assert not [c for c in output if (ord(c) < 32 and c != "\n") or c in "\x7f\u202e"]

    code, text = host.diagnose("--json")
    row = json.loads(text)
    assert (code, row["exit"], row["state"], row["summary"].startswith("no server answers")) == (1, 1, "down", True)
    assert row["container"] == {
        "name": host.name,
        "status": "exited",
        "exit_code": 1,
        "restarts": 0,
        "started_s": row["container"]["started_s"],
    }


def test_a_loop_is_named_with_the_line_of_the_start_that_ended(host: DiagnosedHost) -> None:
    value = host.serve("echo 'ValueError: no such model'; exit 3", restart_policy={"Name": "unless-stopped"})
    deadline_s = time.monotonic() + 60
    while (value.reload() or value.attrs["RestartCount"]) < 3 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    code, output = host.diagnose()
    first = output.splitlines()[0]
    assert code == 1
    assert re.match(rf"no server answers: crash loop: {host.name} exited (\(3\) )?", first), first
    assert first.endswith(' restarts so far, its last line: "ValueError: no such model"')


def test_one_that_runs_and_does_not_answer_yet_is_starting(host: DiagnosedHost) -> None:
    host.serve("echo loading; exec sleep 600")
    code, output = host.diagnose()
    assert (code, output.startswith(f"no server answers yet: {host.name} has been starting for ")) == (4, True), output


def test_one_that_docker_could_not_start_says_what_docker_said(host: DiagnosedHost) -> None:
    import socket

    from docker.errors import APIError

    with socket.create_server(("127.0.0.1", host.port)), pytest.raises(APIError):
        host.serve("exec sleep 600")
    code, output = host.diagnose()
    assert code == 1
    assert output.startswith(f"no server answers: {host.name} was created but never started: "), output
    assert str(host.port) in output.splitlines()[0]
