"""A simulated Spark with a fault at a chosen point of a deploy: the run waits at a gate before a task, the fault is injected,
and the gate opens."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import psutil
from docker import DockerClient

from sparkwright.host.runs import journal
from sparkwright.host.state import StateFolder
from sparkwright.sandbox import control
from tests.e2e.conftest import TOP, SandboxProject
from tests.waiting import wait_until

RECIPE = "recipes/qwen3.5-35b.yml"
TIMEOUT_S = 60.0


def start_deploy(root: Path, host: str) -> subprocess.Popen[str]:
    """Start a deploy, whose output goes to the file `output` of the project."""
    command = [sys.executable, "-c", "from sparkwright.cli import main; main()", "deploy", "--host", host, "--json"]
    out = (root / "output").open("w")
    options: dict[str, Any] = {"cwd": root, "stdout": out, "stderr": out, "stdin": subprocess.DEVNULL, "text": True}
    env = {**os.environ, "SPARKWRIGHT_SANDBOX_SPEED": "instant", "PYTHONPATH": str(TOP / "src")}
    return subprocess.Popen(command, env=env, start_new_session=True, **options)


def wait_for_gate(root: Path, marker: Path, laptop: subprocess.Popen[str], timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a run has created the marker of its gate."""
    wait_until(lambda: marker.exists() or laptop.poll() is not None, "the gate", timeout_s)
    assert marker.exists(), (root / "output").read_text()[-3000:]


def restart_engine(sandbox: Path) -> None:
    pid = json.loads((sandbox / "state.json").read_text())["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: is_released(sandbox / "alive"), "the engine's end")
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
    control.up(sandbox)


def read_events(run: Path) -> list[dict[str, Any]]:
    """Read the complete events of a run's journal."""
    return [json.loads(line) for line in (run / "events.jsonl").read_bytes().splitlines() if line.endswith(b"}")]


class Bench:
    """A project with a sandbox that is reused from one fault to the next."""

    def __init__(self, project: SandboxProject) -> None:
        self.project = project
        self.playbooks = {path: path.read_text() for path in (project.root / "playbooks").rglob("*.yml")}
        self.seqs = 8
        self.disk_folder = self.state.path
        self.disk_folder.mkdir(parents=True)
        mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(self.disk_folder)]
        self.tmpfs = not subprocess.run(mount, capture_output=True, check=False).returncode

    def close(self) -> None:
        control.down(self.project.sandbox)
        if self.tmpfs:
            subprocess.run(["umount", "-l", str(self.disk_folder)], check=False)

    @property
    def state(self) -> StateFolder:
        return StateFolder.in_home(self.project.sandbox / "home")

    def whole(self) -> str:
        """Return the Id of the serving server before a fault. It is deployed if an earlier fault left none."""
        if not self.serving():
            self.project.deploy()
        server = self.serving()
        assert server, "a deploy does not repair the previous fault"
        return server

    # -- a deploy with a gate ------------------------------------------------------------------------------------

    def change(self) -> None:
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
        for path, text in self.playbooks.items():
            path.write_text(text)

    def start(self) -> subprocess.Popen[str]:
        return start_deploy(self.project.root, "sandbox")

    def reached(self, laptop: subprocess.Popen[str]) -> None:
        wait_for_gate(self.project.root, self.project.root / "reached", laptop)

    def open(self) -> None:
        (self.project.root / "open").touch()

    def ended(self) -> dict[str, Any]:
        """Wait for the end of the newest run, with or without a laptop, and return its recap; empty if it was killed."""
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
        """Restart the Docker Engine: every container exits, and those with a restart policy are started."""
        restart_engine(self.project.sandbox)

    def power(self) -> None:
        """Kill the run and the Docker Engine at once, and start the engine."""
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            runner = psutil.Process(json.loads((self.state.path / "lock").read_text())["pid"])
            runner.suspend()  # it must not start processes
            for process in (runner, *runner.children(recursive=True)):
                process.kill()
        restart_engine(self.project.sandbox)

    def ollama(self, laptop: subprocess.Popen[str]) -> None:
        url = f"http://{control.up(self.project.sandbox)['OLLAMA_HOST']}/api/generate"
        body = json.dumps({"model": "qwen3:32b"}).encode()
        with contextlib.suppress(urllib.error.HTTPError):  # the model does not fit if the server has its memory
            urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=10).read()

    def disk(self, laptop: subprocess.Popen[str]) -> None:
        with contextlib.suppress(OSError), (self.disk_folder / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(b"x" * 4096)

    def repair(self) -> None:
        (self.disk_folder / "filler").unlink(missing_ok=True)
        self.ungate()

    # -- the servers afterwards ----------------------------------------------------------------------------------

    def client(self) -> DockerClient:
        return DockerClient(base_url=control.up(self.project.sandbox)["DOCKER_HOST"])

    def serving(self) -> str:
        """Return the Id of the server if it generates and has its restart policy; otherwise an empty text."""
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
        """Return `serving` after the time in which a Docker Engine restarts its containers."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: bool(self.serving()), "a server", 5)
        return self.serving()

    def run_events(self) -> list[dict[str, Any]]:
        return read_events(next(self.state.runs()))


class Watcher:
    """A thread that calls `look` at intervals of `every_s` for as long as the `with` block."""

    every_s = 0.1

    def __init__(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def look(self) -> None:
        raise NotImplementedError

    def _run(self) -> None:
        while not self._done.wait(self.every_s):
            self.look()


class ServerWatcher(Watcher):
    """Records the highest number of servers that ran at once, and of those with a restart policy."""

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
    """Return the names of the tasks of the swap and of its verification in order, without the names of blocks."""
    names = ["Create new container"]
    for part in ("swap", "prove"):
        text = (playbooks / f"parts/{part}.yml").read_text()
        names += re.findall(r"(?m)^ *- name: (.+)\n(?! *(?:when: .*\n *)?block:)", text)
    return names
