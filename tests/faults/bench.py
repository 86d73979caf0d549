"""A pretend Spark that is broken on purpose at one moment of a deploy: a gate stands before one task, the fault is done while
the run waits there, and the gate opens."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import docker
import psutil

from sparkwright.host.runs import journal
from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from tests.e2e.conftest import TOP, SandboxProject
from tests.faults.watching import Watcher
from tests.waiting import wait_until

RECIPE = "recipes/qwen3.5-35b.yml"
TIMEOUT_S = 60.0


class Bench:
    """A project whose sandbox goes on from one fault to the next."""

    def __init__(self, project: SandboxProject) -> None:
        self.project = project
        playbooks = (project.root / "playbooks").rglob("*.yml")
        self.good_books = {path: path.read_text() for path in playbooks}
        self.seqs = 8
        self.room = self.state.path
        self.room.mkdir(parents=True)
        self.tmpfs = not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(self.room)], capture_output=True, check=False
        ).returncode

    def close(self) -> None:
        control.down(self.project.sandbox)
        if self.tmpfs:
            subprocess.run(["umount", "-l", str(self.room)], check=False)

    @property
    def state(self) -> StateFolder:
        return StateFolder.in_home(self.project.sandbox / "home")

    def whole(self) -> str:
        """Return the Id of the serving server before anything is broken, after repairing what an earlier cell left."""
        if not self.serving():
            self.project.deploy()
        serves = self.serving()
        assert serves, "the cell before left nothing that a deploy could mend"
        return serves

    # -- a deploy with a gate ------------------------------------------------------------------------------------

    def change(self) -> None:
        """Ask for another server than the one that runs."""
        self.seqs = self.seqs % 60 + 1
        self.project.edit(RECIPE, r"max-num-seqs: \d+", f"max-num-seqs: {self.seqs}")

    def gate(self, before: str, fail_at: str = "") -> None:
        """Put the gate before a task. fail_at: a task of the swap before which the change fails."""
        for name in ("reached", "open", "fail"):
            (self.project.root / name).unlink(missing_ok=True)
        root = self.project.root
        wait = f"touch {root}/reached; until [ -e {root}/open ]; do sleep 0.02; done; test ! -e {root}/fail"
        self.project.before(before, f'{{name: Gate, command: {{argv: [sh, -c, "{wait}"]}}}}')
        if fail_at:
            self.project.before(fail_at, "{name: Fail, fail: {msg: broken on purpose}}")

    def ungate(self) -> None:
        for path, text in self.good_books.items():
            path.write_text(text)

    def start(self) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-c",
            "from sparkwright.cli import main; main()",
            "deploy",
            "--host",
            "sandbox",
            "--json",
        ]
        env = {**os.environ, "SPARKWRIGHT_SANDBOX_SPEED": "instant", "PYTHONPATH": str(TOP / "src")}
        out = (self.project.root / "said").open("w")
        return subprocess.Popen(
            command,
            cwd=self.project.root,
            env=env,
            stdout=out,
            stderr=out,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            text=True,
        )

    def reached(self, laptop: subprocess.Popen[str]) -> None:
        """Wait until the run stands at the gate."""
        wait_until(lambda: (self.project.root / "reached").exists() or laptop.poll() is not None, "the gate")
        assert (self.project.root / "reached").exists(), (self.project.root / "said").read_text()[-2000:]

    def open(self) -> None:
        (self.project.root / "open").touch()

    def ended(self) -> dict[str, Any]:
        """Wait for the newest run's end, with or without a laptop; its recap, empty when it was cut off."""
        folder = next(self.state.runs())
        wait_until(lambda: not journal.is_running(folder), "the run's end")
        return journal.read_recap(folder) or {}

    # -- faults --------------------------------------------------------------------------------------------------

    def fails(self, laptop: subprocess.Popen[str]) -> None:
        (self.project.root / "fail").touch()

    def killed(self, laptop: subprocess.Popen[str]) -> None:
        os.kill(json.loads((self.state.path / "lock").read_text())["pid"], signal.SIGKILL)

    def cut(self, laptop: subprocess.Popen[str]) -> None:
        os.killpg(laptop.pid, signal.SIGKILL)

    def docker(self, laptop: subprocess.Popen[str]) -> None:
        """The engine goes and comes back: every container dies, those with a policy start again."""
        pid = json.loads((self.project.sandbox / "state.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_released(self.project.sandbox / "alive"), "the engine's end")
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
        control.up(self.project.sandbox)

    def power(self) -> None:
        """The whole host dies at this moment, the run and the engine with it, and boots."""
        daemon = json.loads((self.project.sandbox / "state.json").read_text())["pid"]
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            runner = psutil.Process(json.loads((self.state.path / "lock").read_text())["pid"])
            runner.suspend()  # it starts nothing more
            for process in (runner, *runner.children(recursive=True)):
                process.kill()
        os.kill(daemon, signal.SIGKILL)
        wait_until(lambda: is_released(self.project.sandbox / "alive"), "the engine's end")
        with contextlib.suppress(ChildProcessError):
            os.waitpid(daemon, 0)
        control.up(self.project.sandbox)

    def ollama(self, laptop: subprocess.Popen[str]) -> None:
        url = f"http://{control.up(self.project.sandbox)['OLLAMA_HOST']}/api/generate"
        body = json.dumps({"model": "qwen3:32b"}).encode()
        with contextlib.suppress(urllib.error.HTTPError):  # beside a server that holds the memory it does not fit
            urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=10).read()

    def disk(self, laptop: subprocess.Popen[str]) -> None:
        with contextlib.suppress(OSError), (self.room / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)

    def repair(self) -> None:
        (self.room / "filler").unlink(missing_ok=True)
        self.ungate()

    # -- what came of it -----------------------------------------------------------------------------------------

    def client(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=control.up(self.project.sandbox)["DOCKER_HOST"])

    def serving(self) -> str:
        """The Id of the one server that runs with its earned policy and gives a token; empty when there is none."""
        client = self.client()
        running = client.api.containers()
        assert len(running) <= 1, running
        if not running or running[0]["Names"] != ["/qwen35"] or not self._token():
            return ""
        policy = client.api.inspect_container(running[0]["Id"])["HostConfig"]["RestartPolicy"]["Name"]
        return str(running[0]["Id"]) if policy == "unless-stopped" else ""

    def _token(self) -> bool:
        body = {"model": "qwen3.5-35b", "messages": [{"role": "user", "content": "ok"}], "max_tokens": 1}
        url = f"http://127.0.0.1:{self.project.port}/v1/chat/completions"
        request = urllib.request.Request(
            url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return bool(json.loads(answer.read())["choices"])
        except OSError:
            return False

    def settled(self) -> str:
        """`serving`, for what an engine brings up again by itself."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: bool(self.serving()), "a server", 5)
        return self.serving()

    def story(self) -> list[dict[str, Any]]:
        """The events of the newest run."""
        folder = next(self.state.runs())
        return [json.loads(line) for line in (folder / "events.jsonl").read_bytes().splitlines() if line.endswith(b"}")]


class ServerWatcher(Watcher):
    """Looks on all the while: how many servers ran at once, and how many would start by themselves."""

    every_s = 0.03

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.bench = bench
        self.most_running = 0
        self.most_eligible = 0

    def look(self) -> None:
        try:
            rows = json.loads((self.bench.project.sandbox / "containers.json").read_text())["containers"]
            running = self.bench.client().api.containers()
        except Exception:  # the engine is being restarted
            return
        self.most_running = max(self.most_running, len(running))
        self.most_eligible = max(self.most_eligible, sum(row["policy"] != "no" for row in rows))


def is_released(path: Path) -> bool:
    """Return True if the process that held a file's lock is gone, with all of its threads."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def swap_tasks(playbooks: Path) -> list[str]:
    """The names of the tasks of the swap and of the proof that ends it, in order. A block's name is no task's."""
    names = ["Create new container"]
    for part in ("swap", "prove"):
        text = (playbooks / f"parts/{part}.yml").read_text()
        names += re.findall(r"(?m)^ *- name: (.+)\n(?! *(?:when: .*\n *)?block:)", text)
    return names
