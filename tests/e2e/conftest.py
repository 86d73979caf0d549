"""A user's project with a sandbox, driven by the real command."""

import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from tests import commands
from tests.e2e.kept import SandboxSnapshot, free_snapshot, read_project
from tests.remote.sshd import free_port
from tests.waiting import wait_until

TOP = Path(__file__).parent.parent.parent
PROGRAM = "from sparkwright.cli import main; main()"


@dataclass
class CommandResult:
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

    def task_by_host(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the task's last event on each host."""
        finished = [event for event in self.events() if event["event"] == "task_finished" and event["name"] == name]
        return {event["host"]: event for event in finished}

    def started_tasks(self) -> list[str]:
        return [event["name"] for event in self.events() if event["event"] == "task_started"]


def wait_for_line(command: subprocess.Popen[str], text: str) -> str:
    """Read the output of a running command until a line contains the text, and return this line."""
    assert command.stdout is not None
    line = next((line for line in command.stdout if text in line), "")
    assert line, f"{text} was never printed"
    return line


#: fewer tokens and shorter waits than for a real server
SHORTENED_TASKS = {
    "smoke_test": "tokens: 24",
    "verify_health": "timeout_s: 3",
    "ollama_unload": "timeout_s: 2",
    "hf_model": "tries: 3",
    "liveness": "timeout_s: 15",
}


def _add_argument(playbook: str, module: str, argument: str) -> str:
    """Return a playbook in which each task of a module has the argument, unless it has one of this name."""

    def add(match: re.Match[str]) -> str:
        head, arguments, indent = match.groups()
        is_present = f"{argument.partition(':')[0]}:" in arguments
        return head + ("" if is_present else f"{indent}{argument}\n") + arguments

    return re.sub(rf"( {module}:\n)((?:( +).*\n)(?:\3.*\n)*)", add, playbook)


class SandboxProject:
    """A project with a simulated Spark that waits only where a test needs it."""

    def __init__(
        self, folder: Path, snapshot: SandboxSnapshot | None = None, shortened: Mapping[str, str] = SHORTENED_TASKS
    ) -> None:
        self.root = folder
        self.sandbox = folder / ".sandbox"
        self._snapshot = snapshot
        self.port = free_port() if snapshot is None else snapshot.port
        for name in ("hosts", "recipes", "playbooks", "templates"):
            shutil.copytree(TOP / name, folder / name)
        self.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {self.port}")
        for recipe in (folder / "recipes").rglob("*.yml"):  # tests/e2e/test_memory.py tests it
            recipe.write_text(re.sub(r"(?m)^  load: .*\n", "", recipe.read_text()))
        for playbook in (folder / "playbooks").rglob("*.yml"):
            for module, parameter in shortened.items():
                playbook.write_text(_add_argument(playbook.read_text(), module, parameter))

    def before(self, task: str, inserted: str) -> None:
        """Insert a task before the one of this name, in every playbook that has it."""
        paths = [path for path in (self.root / "playbooks").rglob("*.yml") if f"- name: {task}\n" in path.read_text()]
        for path in paths:
            name_line = re.compile(rf"(?m)^( *)- name: {re.escape(task)}\n")
            path.write_text(name_line.sub(lambda at: f"{at[1]}- {inserted}\n\n{at[0]}", path.read_text()))
        assert paths, task

    def edit(self, file: str, pattern: str, replacement: str) -> None:
        path = self.root / file
        text, replacements = re.subn(pattern, replacement, path.read_text())
        assert replacements, f"{file} has no {pattern}"
        path.write_text(text)

    @contextmanager
    def restored_files(self) -> Iterator[None]:
        """Restore what a user writes, such as hosts and recipes, after the block."""
        before = read_project(self.root)
        try:
            yield
        finally:
            for name, content in before.items():
                (self.root / name).write_bytes(content)

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Inject a fault for the block."""
        control.set_fault(self.sandbox, name)
        try:
            yield
        finally:
            control.set_fault(self.sandbox, None)

    def start(self, *words: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command and leave it running."""
        arguments = [sys.executable, "-c", PROGRAM, *words]
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(arguments, cwd=self.root, env=self.environment(), text=True, **{**pipes, **options})

    def run(self, *words: str, timeout_s: float = 120) -> CommandResult:
        completed = commands.run(*words, cwd=self.root, env=self.environment(), timeout_s=timeout_s)
        return CommandResult(completed.returncode, completed.stdout, completed.stderr)

    def run_apart(self, *words: str, timeout_s: float = 120) -> CommandResult:
        """Run a command in a new process, with its command line and environment in /proc."""
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

    def deploy_proved(self, *words: str) -> CommandResult:
        result = self.deploy(*words)
        assert result.proved, result.out[-3000:] + result.err
        return result

    def deployed(self) -> None:
        """Deploy for the first time, and check that everything was proved.

        The snapshot of an earlier test's first deploy of the same files is restored instead, if there is one.
        """
        if self._snapshot is None or not self._snapshot.is_unchanged():
            self._deploy_first()
            return
        if self._snapshot.is_missing:
            self._deploy_first()
            self._snapshot.save()
        else:
            self._snapshot.restore()
        wait_until(self.is_up, "the server")

    def _deploy_first(self) -> None:
        result = self.deploy()
        assert result.code == 0, result.out[-3000:]

    def is_up(self) -> bool:
        """Return True if the server's health endpoint answers with 200."""
        with contextlib.suppress(OSError, http.client.HTTPException):
            return bool(urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5).status == 200)
        return False

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return str(answer.read().decode())

    def model_owner(self) -> str:
        """Return the owner of the model that the server lists: its engine."""
        return str(json.loads(self.get("/v1/models"))["data"][0]["owned_by"])

    def running_requests(self) -> float:
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith("vllm:num_requests_running")]
        return float(lines[0].split()[-1]) if lines else 0.0

    def open_stream(self, tokens: int) -> Any:
        """Request a long answer, and return it when it has begun."""
        body = {"model": "qwen3.5-35b", "messages": [{"role": "user", "content": "go"}], "max_tokens": tokens}
        data = json.dumps({**body, "stream": True, "ignore_eos": True}).encode()
        url = f"http://127.0.0.1:{self.port}/v1/chat/completions"
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        answer = urllib.request.urlopen(request, timeout=60)
        answer.readline()
        return answer

    @property
    def state(self) -> StateFolder:
        return StateFolder.in_home(self.sandbox / "home")

    def docker(self) -> Any:
        """Return a client of the simulated Spark's Docker Engine."""
        import docker

        return docker.DockerClient(base_url=control.up(self.sandbox)["DOCKER_HOST"])

    def container(self, name: str = "qwen35") -> dict[str, Any]:
        container: dict[str, Any] = self.docker().api.inspect_container(name)
        return container

    def serving(self) -> str:
        """Return the Id of the serving container; "" if none serves or it gives no token."""
        rows = [row for row in self.docker().api.containers() if row["Names"] == ["/qwen35"]]
        if not rows or self.run("play", "token", "--host", "sandbox").code != 0:
            return ""
        assert self.container(rows[0]["Id"])["HostConfig"]["RestartPolicy"]["Name"] == "unless-stopped"
        return str(rows[0]["Id"])

    def history(self, *words: str) -> list[dict[str, Any]]:
        """Return the rows of `history`, the newest first."""
        return self.run("history", "--host", "sandbox", "--json", *words).events()

    def containers(self) -> list[str]:
        client = self.docker()
        return sorted(f"{row['Names'][0][1:]} {row['State']}" for row in client.api.containers(all=True))


#: a playbook that requests a token
TOKEN_PLAYBOOK = (
    "- hosts: all\n  read_only: true\n  tasks:\n    - verify_health: {base_url: '{{ base_url }}', timeout_s: 5}\n"
)


@contextmanager
def sandbox_project() -> Iterator[SandboxProject]:
    """Yield a project with a sandbox that waits for nothing."""
    with pytest.MonkeyPatch.context() as patch, free_snapshot().reserve() as snapshot:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        value = SandboxProject(snapshot.folder, snapshot)
        (snapshot.folder / "playbooks/token.yml").write_text(TOKEN_PLAYBOOK)
        snapshot.remember_files()
        try:
            yield value
        finally:
            control.down(value.sandbox)
            shutil.rmtree(snapshot.folder, ignore_errors=True)


@pytest.fixture
def project() -> Iterator[SandboxProject]:
    with sandbox_project() as value:
        yield value
