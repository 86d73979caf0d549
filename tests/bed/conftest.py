"""The simulated Sparks over real ssh; skipped without a Docker Engine or root."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests import commands

if TYPE_CHECKING:
    from tests.bed.cluster import ClusterProject

TOP = Path(__file__).parent.parent.parent
BED = TOP / ".bed"
#: no simulated time for loading
INSTANT_SANDBOX = "SPARKWRIGHT_SANDBOX_SPEED: instant"
#: few tokens, and no wait for memory, which the simulated Ollama does not use
SHORTENED_TASKS = {"smoke_test": "tokens: 24", "ollama_unload": "memory_s: 0.1"}
USER_SYSTEMCTL = "XDG_RUNTIME_DIR=/run/user/$(id -u) systemctl --user "
HEALTH_RECORD = ".local/state/sparkwright/health.json"
LOCK = ".local/state/sparkwright/lock"
LOCK_PID = f'python3 -c \'import json; print(json.load(open("{LOCK}"))["pid"])\''
SERVER_TEMPLATE = "{{.Id}} {{.State.Running}} {{.HostConfig.RestartPolicy.Name}}"
PROBE_DOCKER = "docker info > /dev/null 2>&1 && echo yes"
#: exit codes of a successful deploy, also on a machine that is too busy to measure
BUSY_CODES = (0, 4)


@dataclass
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def output(self) -> str:
        return self.out[-4000:] + self.err

    @property
    def events(self) -> list[dict[str, Any]]:
        """The lines of `--json`."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def recap(self) -> dict[str, Any]:
        return dict(json.loads(self.out.splitlines()[-1]))

    def task(self, name: str) -> dict[str, Any]:
        return next(row for row in self.events if row["event"] == "task_finished" and row["name"] == name)


class BedProject:
    """A project whose hosts are simulated Sparks."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.root = folder
        path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "PYTHONPATH": str(TOP / "src")}  # of this checkout

    def start(self, *words: str) -> subprocess.Popen[str]:
        program = "from sparkwright.cli import main; main()"
        return subprocess.Popen(
            [sys.executable, "-c", program, *words],
            cwd=self.root,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def run(self, *words: str) -> CommandResult:
        completed = commands.run(*words, cwd=self.root, env=self.env, timeout_s=240)
        return CommandResult(completed.returncode, completed.stdout, completed.stderr)

    def run_separately(self, *words: str) -> CommandResult:
        """Run a command in its own process, with its arguments and environment in /proc."""
        process = self.start(*words)
        out, err = process.communicate(timeout=240)
        return CommandResult(process.returncode, out, err)

    def deploy(self, host: str = "spark1") -> CommandResult:
        return self.run("deploy", "--host", host, "--json")

    def deployed(self, host: str = "spark1", codes: tuple[int, ...] = (0,)) -> CommandResult:
        result = self.deploy(host)
        assert result.code in codes, result.output
        return result

    def start_until(self, text: str, *words: str) -> subprocess.Popen[str]:
        """Start a command, and read its output up to a line with a text."""
        process = self.start(*words)
        assert process.stdout is not None
        next(line for line in process.stdout if text in line)
        return process

    # -- the hosts ---------------------------------------------------------------------------------------------------

    def on(self, host: str, command: str, text: str | None = None) -> str:
        """Run a command on a host over ssh, and return its output. text: its standard input."""
        completed = subprocess.run(
            ["ssh", host, command], env=self.env, input=text, capture_output=True, text=True, timeout=120, check=False
        )
        return completed.stdout.strip()

    def server(self, host: str = "spark1", name: str = "qwen35") -> str:
        """Return Id, state and restart policy of a container."""
        return self.on(host, f"docker inspect -f '{SERVER_TEMPLATE}' {name}")

    def check_health(self, host: str = "spark1") -> dict[str, Any]:
        """Run the scheduled check, wait for its end and return its record."""
        self.on(host, USER_SYSTEMCTL + "start sparkwright-health.service")
        return self.health_record(host)

    def health_record(self, host: str = "spark1") -> dict[str, Any]:
        return dict(json.loads(self.on(host, f"cat {HEALTH_RECORD}") or "{}"))

    def wait_for(self, host: str, command: str, expected: str, timeout_s: float = 150) -> None:
        deadline_s = time.monotonic() + timeout_s
        while (output := self.on(host, command)) != expected:
            assert time.monotonic() < deadline_s, f"{command} printed {output!r}, not {expected!r}"
            time.sleep(0.2)

    # -- faults ------------------------------------------------------------------------------------------------------

    def killed(self, host: str) -> None:
        """Kill the host's runner."""
        self.on(host, f"kill -9 $({LOCK_PID})")

    def cut(self, host: str) -> None:
        """End the host's ssh connections, as if the laptop was suspended."""
        self.on(host, "sudo pkill -KILL -u ops -f 'sshd: ops'")

    def power(self, host: str) -> None:
        """Cut the host's power, and boot it."""
        for command in ("kill", "start"):
            subprocess.run(["docker", command, f"sparkwright-bed-{host}"], check=True, capture_output=True)
        subprocess.run([sys.executable, str(TOP / "molecule/bed/bed.py"), "up", "--hosts", "2"], check=True)

    # -- files of the project ----------------------------------------------------------------------------------------

    def edit(self, name: str, before: str, after: str) -> None:
        path = self.root / name
        text = path.read_text()
        assert before in text, before
        path.write_text(text.replace(before, after))

    def recipe(self, before: str, after: str, name: str = "bed") -> None:
        self.edit(f"recipes/{name}.yml", before, after)

    def insert_gate(self, task: str, gate: str, folder: str = "playbooks") -> dict[Path, str]:
        """Insert a task with a shell command before a task, and return the playbooks without it."""
        playbooks = {path: path.read_text() for path in (self.root / folder).rglob("*.yml")}
        inserted = f"\\1- name: Gate\n\\1  command: {{argv: [sh, -c, '{gate}']}}\n\n\\1"
        changed = {path: re.sub(rf"(?m)^( *)(?=- name: {task}\n)", inserted, text) for path, text in playbooks.items()}
        assert changed != playbooks, task
        for path, text in changed.items():
            path.write_text(text)
        return playbooks


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.bed)


AnyProject = TypeVar("AnyProject", bound=BedProject)


@pytest.fixture(scope="session")
def bed() -> Path:
    if os.geteuid() != 0 or not shutil.which("docker") or not shutil.which("debootstrap"):
        pytest.skip("the bed needs root, Docker and debootstrap (.ci/run installs them)")
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker Engine answers (.ci/run starts one)")
    subprocess.run([sys.executable, str(TOP / "molecule/bed/bed.py"), "up", "--hosts", "2"], check=True)
    return BED


def shorten_waits(lab: AnyProject, recipe: str) -> AnyProject:
    """Shorten the deploys of a project: less is measured, and the simulated engine starts at once."""
    for playbook in (lab.root / "playbooks").rglob("*.yml"):
        for module, shorter in SHORTENED_TASKS.items():
            playbook.write_text(re.sub(rf"( {module}:\n)( +)", rf"\1\2{shorter}\n\2", playbook.read_text()))
    lab.recipe("container:\n", f"container:\n  env: {{{INSTANT_SANDBOX}}}\n", recipe)
    return lab


@pytest.fixture
def lab(bed: Path, tmp_path: Path) -> Iterator[BedProject]:
    shutil.copytree(bed / "project", tmp_path / "project", dirs_exist_ok=True)
    (tmp_path / "project/spark.lock").unlink(missing_ok=True)
    yield shorten_waits(BedProject(tmp_path / "project", bed / "bin"), "bed")


@pytest.fixture
def pair(bed: Path, tmp_path: Path) -> Iterator[ClusterProject]:
    """A project with a cluster of the two hosts, without servers."""
    from tests.bed.cluster import CLEAR_COMMAND, HOSTS, ClusterProject

    shutil.copytree(bed / "pair", tmp_path / "pair")
    (tmp_path / "pair/spark.lock").unlink(missing_ok=True)
    value = shorten_waits(ClusterProject(tmp_path / "pair", bed / "bin"), "pair")
    for host in HOSTS:
        value.on(host, CLEAR_COMMAND)
    yield value
    for host in HOSTS:
        value.on(host, CLEAR_COMMAND)


@pytest.fixture
def bare(lab: BedProject) -> BedProject:
    """spark1 without containers, models and state, except for the options read from images."""
    lab.on(
        "spark1",
        "docker rm -f qwen35 qwen35-previous; rm -rf models; sudo systemctl restart ollama; "
        "find .local/state/sparkwright -mindepth 1 -maxdepth 1 ! -name engines -exec rm -rf {} +",
    )
    return lab
