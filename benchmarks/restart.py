"""The time that sparkwright adds to a restart, beyond the engine's own stop and start, and the time of a plan over ssh.

    make bench-restart                  (measures the plan over ssh only if the bed is up: `make bed`)

A client requests one token after another from the sandbox's server; the downtime is the time between the last answer
before the restart and the first one after it. The sandbox's engine starts immediately, so the difference is sparkwright's: drain,
the proof that container, processes and memory are gone, the page cache, the memory check. The time of `docker stop`, and of
`docker start` with free memory until the first token, is subtracted. Medians of 5.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import docker
from tests.remote.sshd import free_port

from benchmarks import noop_over_ssh
from benchmarks.common import SPARKWRIGHT, TOP, measure
from benchmarks.delay_proxy import DelayProxy
from sparkwright.project import starter
from sparkwright.sandbox import control

RUNS = 5
RTT_MS = 40
RECIPE = "recipes/qwen3.5-35b.yml"
REQUEST_EVERY_S = 0.01
LINGERS_S = 1.0  # longer than the time for which the sandbox's CUDA context outlives its container


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="bench-"))  # short: a unix socket's path has a limit
    os.environ["SPARKWRIGHT_SANDBOX_SPEED"] = "instant"
    os.environ["PYTHONPATH"] = str(TOP / "src")
    try:
        print_downtimes(SandboxProject(folder))
    finally:
        control.down(folder / ".sandbox")
        shutil.rmtree(folder, ignore_errors=True)
    if (noop_over_ssh.BED / "project").is_dir():
        print_plans()
    else:
        print("\nplan over ssh: not measured, the bed is not up (make bed)")


class SandboxProject:
    """A project with a running server on the sandbox."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        starter.write_starter(folder)
        self.port = free_port()
        self.edit("hosts/sandbox.yml", r"serve_port: \d+", f"serve_port: {self.port}")
        self.seqs = 8
        self.run("deploy")

    def edit(self, file: str, pattern: str, replacement: str) -> None:
        path = self.folder / file
        path.write_text(re.sub(pattern, replacement, path.read_text()))

    def run(self, command: str) -> None:
        measure([*SPARKWRIGHT, command, "--host", "sandbox"], self.folder, os.environ)

    def stop(self) -> None:
        """Stop the engine only, without verification."""
        self.docker.api.stop("qwen35", timeout=60)

    def start(self) -> None:
        """Start the engine only, with free memory."""
        self.docker.api.start("qwen35")

    @property
    def docker(self) -> docker.DockerClient:
        return docker.DockerClient(base_url=control.up(self.folder / ".sandbox")["DOCKER_HOST"])

    def change(self) -> None:
        """Deploy a change that replaces the server."""
        self.seqs += 1
        self.edit(RECIPE, r"max-num-seqs: \d+", f"max-num-seqs: {self.seqs}")
        self.run("deploy")


class Client:
    """Requests one token after another until an outage has ended.

    answered_s: time of the first token after the outage, seconds since the epoch.
    """

    def __init__(self, port: int) -> None:
        self.outage_s = self.answered_s = 0.0
        self._port = port
        self._answered = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Client:
        self._thread.start()
        self._answered.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._thread.join()

    def _run(self) -> None:
        last_s, failed = 0.0, False
        while True:
            answered = self._request_token()
            now_s = time.perf_counter()
            if answered and failed:
                self.outage_s, self.answered_s = now_s - last_s, time.time()
                return
            if answered:
                last_s = now_s
                self._answered.set()
            failed = failed or (not answered and last_s > 0)
            time.sleep(REQUEST_EVERY_S)

    def _request_token(self) -> bool:
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


def print_downtimes(project: SandboxProject) -> None:
    """Print a line for the engine alone, and one for each kind of restart."""
    engine_s = statistics.median(measure_engine_s(project) for _ in range(RUNS))
    print(f"{'':<20} {'downtime':>9} {'the tool adds':>14} {'worst':>7}")
    print(f"{'stop + engine start':<20} {engine_s:>8.2f}s")
    for name, action in (("restart", lambda: project.run("restart")), ("deploy of a change", project.change)):
        outages = [measure_outage_s(project, action) for _ in range(RUNS)]
        median_s = statistics.median(outages)
        print(f"{name:<20} {median_s:>8.2f}s {median_s - engine_s:>13.2f}s {max(outages) - engine_s:>6.2f}s")


def measure_engine_s(project: SandboxProject) -> float:
    """Return the seconds of `docker stop` plus those of `docker start` until the first token, without the pause between."""
    with Client(project.port) as client:
        project.stop()
        stopped_s = time.perf_counter()
        time.sleep(LINGERS_S)
        started_s = time.perf_counter()
        project.start()
    return client.outage_s - (started_s - stopped_s)


def measure_outage_s(project: SandboxProject, action: Callable[[], None]) -> float:
    with Client(project.port) as client:
        action()
    return client.outage_s


def print_plans() -> None:
    """Print a plan without changes and one with a changed flag, over ssh with a round-trip time of 40 ms."""
    proxy = DelayProxy(noop_over_ssh.SSH_PORT, RTT_MS / 1000)
    print(f"\n{'plan at ' + str(RTT_MS) + ' ms':<20} {'seconds':>9} {'connections':>12} {'turns':>6}")
    with tempfile.TemporaryDirectory() as folder:
        project, env = noop_over_ssh.create_project(Path(folder), proxy.port)
        measure([*SPARKWRIGHT, "deploy", "--host", "spark1", "--json"], project, env)
        plan = [*SPARKWRIGHT, "plan", "--host", "spark1", "--json"]
        for name in ("no changes", "a flag differs"):
            before = vars(proxy.counts).copy()
            plan_s = statistics.median(measure(plan, project, env, codes=(0, 2)).seconds for _ in range(RUNS))
            each = {key: (count - before[key]) / RUNS for key, count in vars(proxy.counts).items()}
            print(f"{name:<20} {plan_s:>8.2f}s {each['connections']:>12.1f} {each['turns']:>6.1f}")
            recipe = project / "recipes/bed.yml"
            recipe.write_text(re.sub(r"max-num-seqs: \d+", "max-num-seqs: 5", recipe.read_text()))


if __name__ == "__main__":
    main()
