"""A project of its own with a sandbox of its own, driven by the real command."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkwright.sandbox import control
from tests import commands
from tests.e2e.kept import SandboxSnapshot, free_snapshot
from tests.remote.sshd import free_port

TOP = Path(__file__).parent.parent.parent


@dataclass
class CommandResult:
    """The result of a command."""

    code: int
    out: str
    err: str

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def recap(self) -> dict[str, Any]:
        return self.events()[-1]

    @property
    def held_up(self) -> bool:
        """Return True if only the throughput was not proved, because this machine was too busy to measure it."""
        return self.code == 4 and "client is too slow" in self.out

    @property
    def proved(self) -> bool:
        return self.code == 0 or self.held_up

    def task(self, name: str) -> dict[str, Any]:
        return next(event for event in self.events() if event["event"] == "task_finished" and event["name"] == name)


#: fewer tokens and shorter waits than a real server deserves
SHORTENED_TASKS = {
    "smoke_test": "tokens: 24",
    "verify_health": "timeout_s: 3",
    "ollama_unload": "timeout_s: 2",
    "hf_model": "tries: 3",
    "liveness": "timeout_s: 15",
}


class SandboxProject:
    """A user's project with a simulated Spark, which takes no time where time proves nothing."""

    def __init__(
        self, folder: Path, snapshot: SandboxSnapshot | None = None, shortened: Mapping[str, str] = SHORTENED_TASKS
    ) -> None:
        self.root = folder
        self.sandbox = folder / ".sandbox"
        self._kept = snapshot
        self.port = free_port() if snapshot is None else snapshot.port
        for name in ("hosts", "recipes", "playbooks", "templates"):
            shutil.copytree(TOP / name, folder / name)
        self.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {self.port}")
        for recipe in (folder / "recipes").rglob("*.yml"):  # proved by tests/e2e/test_memory.py
            recipe.write_text(re.sub(r"(?m)^  load: .*\n", "", recipe.read_text()))
        for playbook in (folder / "playbooks").rglob("*.yml"):
            for module, parameter in shortened.items():
                playbook.write_text(re.sub(rf"( {module}:\n)( +)", rf"\1\2{parameter}\n\2", playbook.read_text()))

    def before(self, task: str, inserted: str) -> None:
        """Insert a task before the one of this name, in every playbook that has it."""
        paths = [path for path in (self.root / "playbooks").rglob("*.yml") if f"- name: {task}\n" in path.read_text()]
        for path in paths:
            name_line = re.compile(rf"(?m)^( *)- name: {re.escape(task)}\n")
            path.write_text(name_line.sub(lambda at: f"{at[1]}- {inserted}\n\n{at[0]}", path.read_text()))
        assert paths, task

    def edit(self, file: str, pattern: str, replacement: str) -> None:
        path = self.root / file
        path.write_text(re.sub(pattern, replacement, path.read_text()))

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        program = "from sparkwright.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", program, *words],
            cwd=self.root,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def run(self, *words: str, timeout_s: float = 120) -> CommandResult:
        completed = commands.run(*words, cwd=self.root, env=self.environment(), timeout_s=timeout_s)
        return CommandResult(completed.returncode, completed.stdout, completed.stderr)

    def run_apart(self, *words: str, timeout_s: float = 120) -> CommandResult:
        """Run a command as a process of its own, with its command line and environment in /proc."""
        with self.start(*words) as command:
            try:
                out, err = command.communicate(timeout=timeout_s)
            except BaseException:
                command.kill()
                raise
        return CommandResult(command.returncode, out, err)

    def environment(self) -> dict[str, str]:
        env = {**os.environ, "SPARKWRIGHT_SANDBOX_SPEED": "instant", "PYTHONPATH": str(TOP / "src")}  # of this checkout
        env.pop("SPARKWRIGHT_SANDBOX", None)
        return env

    def deploy(self, *words: str) -> CommandResult:
        return self.run("deploy", "--host", "sandbox", "--json", *words)

    def deployed(self) -> None:
        """Deploy for the first time, and check that everything was proved.

        The snapshot of an earlier test's first deploy of the same files is restored instead, if there is one.
        """
        if self._kept is None or not self._kept.as_given():
            self._deployed()
            return
        if self._kept.missing:
            self._deployed()
            self._kept.keep()
        else:
            self._kept.lay()
        self._ready()

    def _deployed(self) -> None:
        result = self.deploy()
        assert result.code == 0, result.out[-3000:]

    def _ready(self) -> None:
        """Wait until the server answers."""
        deadline_s = time.monotonic() + 30
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).status == 200:
                    return
            time.sleep(0.02)
        raise AssertionError("the server does not come back")

    def docker(self) -> Any:
        """Return a client of the simulated Spark's Docker Engine."""
        import docker

        return docker.DockerClient(base_url=control.up(self.sandbox)["DOCKER_HOST"])

    def serving(self) -> str:
        """Return the Id of the serving container; "" if none serves or it gives no token."""
        client = self.docker()
        rows = [row for row in client.api.containers() if row["Names"] == ["/qwen35"]]
        if not rows or self.run("play", "token", "--host", "sandbox").code != 0:
            return ""
        assert client.api.inspect_container(rows[0]["Id"])["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
        return str(rows[0]["Id"])

    def containers(self) -> list[str]:
        client = self.docker()
        return sorted(f"{row['Names'][0][1:]} {row['State']}" for row in client.api.containers(all=True))


#: a playbook that asks for a token
TOKEN_PLAYBOOK = (
    "- hosts: all\n  read_only: true\n  tasks:\n    - verify_health: {base_url: '{{ base_url }}', timeout_s: 5}\n"
)


@contextmanager
def sandbox_project() -> Iterator[SandboxProject]:
    """Yield a project whose sandbox takes no time."""
    with free_snapshot().lent() as snapshot:
        value = SandboxProject(snapshot.folder, snapshot)
        (snapshot.folder / "playbooks/token.yml").write_text(TOKEN_PLAYBOOK)
        snapshot.given()
        try:
            yield value
        finally:
            control.down(value.sandbox)
            shutil.rmtree(snapshot.folder, ignore_errors=True)


@pytest.fixture
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[SandboxProject]:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    with sandbox_project() as value:
        yield value
