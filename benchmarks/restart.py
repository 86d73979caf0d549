"""The cost of a restart beyond the engine's own stop and start, and of a plan over ssh.

    make bench-restart                  (with the bed up, `make bed`, the plan over ssh too)

A client asks the pretend Spark's server for a token, again and again, each time for one; the downtime is the time between the
last answer before and the first one after. The engine of the sandbox starts at once here, so that what is left is the tool's:
drain, the proof that container, processes and memory are gone, the page cache, the fit check. What `docker stop` takes, and a
`docker start` into free memory until the first token, is taken off. Medians of 5.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

TOP = Path(__file__).parent.parent
sys.path.insert(0, str(TOP))

import docker

from benchmarks import noop_over_ssh
from benchmarks.delay_proxy import DelayProxy
from sparkwright.project import starter
from sparkwright.sandbox import control

RUNS = 5
RTT_MS = 40
SPARKWRIGHT = [sys.executable, "-c", "from sparkwright.cli import main; main()"]
RECIPE = "recipes/qwen3.5-35b.yml"
ASK_EVERY_S = 0.01
LINGERS_S = 1.0  # longer than the sandbox's CUDA context outlives its container


def main() -> None:
    """Print both tables."""
    folder = Path(tempfile.mkdtemp(prefix="bench-"))  # short: a unix socket's path has a limit
    os.environ["SPARKWRIGHT_SANDBOX_SPEED"] = "instant"
    os.environ["PYTHONPATH"] = str(TOP / "src")
    try:
        downtimes(Desk(folder))
    finally:
        control.down(folder / ".sandbox")
        shutil.rmtree(folder, ignore_errors=True)
    if (noop_over_ssh.BED / "project").is_dir():
        plans()
    else:
        print("\nplan over ssh: not measured, the bed is not up (make bed)")


class Desk:
    """A project with a running server on the sandbox."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        starter.write_starter(folder)
        with socket.create_server(("127.0.0.1", 0)) as one:
            self.port = one.getsockname()[1]
        self.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {self.port}")
        self.seqs = 8
        self.run("deploy")

    def edit(self, file: str, pattern: str, replacement: str) -> None:
        path = self.folder / file
        path.write_text(re.sub(pattern, replacement, path.read_text()))

    def run(self, verb: str) -> None:
        """Run a command of the tool; a failure ends the benchmark."""
        words = [*SPARKWRIGHT, verb, "--host", "sandbox"]
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout[-1500:] + done.stderr[-1500:])

    def stop(self) -> None:
        """Stop the engine only, without verification."""
        self.docker.api.stop("qwen35", timeout=60)

    def start(self) -> None:
        """Start the engine only, with free memory."""
        self.docker.api.start("qwen35")

    @property
    def docker(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=control.up(self.folder / ".sandbox")["DOCKER_HOST"])

    def restart(self) -> None:
        self.run("restart")

    def change(self) -> None:
        """Deploy a change that replaces the server."""
        self.seqs += 1
        self.edit(RECIPE, r"max-num-seqs: \d+", f"max-num-seqs: {self.seqs}")
        self.run("deploy")


class Client:
    """Requests one token after another until there was an outage and a token after it.

    answered_s: when that was, seconds since the epoch.
    """

    def __init__(self, port: int) -> None:
        self.outage_s = self.answered_s = 0.0
        self._port = port
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> Client:
        self._thread.start()
        self._answered.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join()

    def _ask(self) -> None:
        last_s, failed = 0.0, False
        while True:
            answered = self._token()
            now_s = time.perf_counter()
            if answered and failed:
                self.outage_s, self.answered_s = now_s - last_s, time.time()
                return
            if answered:
                last_s = now_s
                self._answered.set()
            failed = failed or (not answered and last_s > 0)
            time.sleep(ASK_EVERY_S)

    def _token(self) -> bool:
        body = {"model": "qwen3.5-35b", "messages": [{"role": "user", "content": "ok"}], "max_tokens": 1}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=2)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return bool(answer.read()) and answer.status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def downtimes(desk: Desk) -> None:
    """Print a line for the engine alone, and one for each way to restart."""
    alone = statistics.median(engine_s(desk) for _ in range(RUNS))
    print(f"{'':<20} {'downtime':>9} {'the tool adds':>14} {'worst':>7}")
    print(f"{'stop + engine start':<20} {alone:>8.2f}s")
    for name, act in (("restart", desk.restart), ("deploy of a change", desk.change)):
        outages = [outage_s(desk, act) for _ in range(RUNS)]
        print(f"{name:<20} {statistics.median(outages):>8.2f}s {statistics.median(outages) - alone:>13.2f}s ", end="")
        print(f"{max(outages) - alone:>6.2f}s")


def engine_s(desk: Desk) -> float:
    """Return the duration of `docker stop`, and of `docker start` until the first token, without the time between."""
    with Client(desk.port) as client:
        desk.stop()
        stopped_s = time.perf_counter()
        time.sleep(LINGERS_S)
        again_s = time.perf_counter()
        desk.start()
    return client.outage_s - (again_s - stopped_s)


def outage_s(desk: Desk, act: Callable[[], None]) -> float:
    """Return how long there was no answer during an action."""
    with Client(desk.port) as client:
        act()
    return client.outage_s


def plans() -> None:
    """Print a plan without changes and one with a changed flag, over ssh with a round-trip time of 40 ms."""
    proxy = DelayProxy(noop_over_ssh.SSH_PORT, RTT_MS / 1000)
    print(f"\n{'plan at ' + str(RTT_MS) + ' ms':<20} {'seconds':>9} {'connections':>12} {'turns':>6}")
    with tempfile.TemporaryDirectory() as folder:
        project, env = noop_over_ssh.laid(Path(folder), proxy.port)
        noop_over_ssh.timed([*SPARKWRIGHT, "deploy", "--host", "spark1", "--json"], project, env)
        for name in ("nothing to do", "a flag differs"):
            before = vars(proxy.seen).copy()
            seconds = [_plan_s(project, env) for _ in range(RUNS)]
            each = {key: (count - before[key]) / RUNS for key, count in vars(proxy.seen).items()}
            print(f"{name:<20} {statistics.median(seconds):>8.2f}s {each['connections']:>12.1f} {each['turns']:>6.1f}")
            recipe = project / "recipes/bed.yml"
            recipe.write_text(re.sub(r"max-num-seqs: \d+", "max-num-seqs: 5", recipe.read_text()))


def _plan_s(project: Path, env: dict[str, str]) -> float:
    words = [*SPARKWRIGHT, "plan", "--host", "spark1", "--json"]
    started_s = time.perf_counter()
    done = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 2):
        sys.exit(done.stdout[-600:] + done.stderr[-600:])
    return time.perf_counter() - started_s


if __name__ == "__main__":
    main()
