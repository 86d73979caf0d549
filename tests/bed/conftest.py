"""The pretend Sparks over real ssh; skipped where there is no Docker Engine or no root."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
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
#: the stand-in engine loads nothing for seconds
INSTANT_SANDBOX = "SPARKWRIGHT_SANDBOX_SPEED: instant"

#: fewer tokens than a real server deserves; the stand-in for Ollama holds no memory that could come back
SHORTENED_TASKS = {"smoke_test": "tokens: 24", "ollama_unload": "memory_s: 0.1"}


@dataclass
class CommandResult:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def recap(self) -> dict[str, Any]:
        return dict(json.loads(self.out.splitlines()[-1]))

    def task(self, name: str) -> dict[str, Any]:
        rows = (json.loads(line) for line in self.out.splitlines())
        return next(row for row in rows if row["event"] == "task_finished" and row["name"] == name)


class BedProject:
    """A user's folder whose hosts are pretend Sparks."""

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

    def run_apart(self, *words: str) -> CommandResult:
        """The same as a process of its own, as its user starts it: with its words and its environment in /proc."""
        process = self.start(*words)
        out, err = process.communicate(timeout=240)
        return CommandResult(process.returncode, out, err)

    def on(self, host: str, command: str) -> str:
        """Run a command on a host over ssh, and return its output."""
        completed = subprocess.run(
            ["ssh", host, command], env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        return completed.stdout.strip()

    def recipe(self, before: str, after: str, name: str = "bed") -> None:
        path = self.root / f"recipes/{name}.yml"
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))


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
    """A project whose deploys wait no longer than a stand-in deserves."""
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
    """A project whose cluster is the two hosts, of which neither serves anything."""
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
    """spark1 as new: no container, no model, no state but what an image has said of its own options."""
    lab.on(
        "spark1",
        "docker rm -f qwen35 qwen35-previous; rm -rf models; sudo systemctl restart ollama; "
        "find .local/state/sparkwright -mindepth 1 -maxdepth 1 ! -name engines -exec rm -rf {} +",
    )
    return lab
