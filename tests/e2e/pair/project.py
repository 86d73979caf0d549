"""A project with a cluster of two simulated Sparks, as `sandbox.pair` writes it, on ports of its own."""

import contextlib
import json
import shutil
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker

from sparkwright.project import starter
from sparkwright.sandbox import control
from tests.e2e.conftest import SHORTENED_TASKS, CommandResult, SandboxProject
from tests.remote.sshd import free_port

HOSTS = (starter.PAIR_HEAD, starter.PAIR_WORKER)
RECIPE = f"recipes/{starter.PAIR_RECIPE}.yml"
NAME = "qwen35-pair"


class PairProject(SandboxProject):
    """The group's name is its --host."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            shortened={"smoke_test": SHORTENED_TASKS["smoke_test"], "ollama_unload": SHORTENED_TASKS["ollama_unload"]},
        )
        starter.write_pair(folder)
        self.seqs = 8
        self.ports = {"port": free_port(), "barrier_port": free_port()}
        ports = ", ".join(f"{name}: {port}" for name, port in self.ports.items())
        self.edit("hosts/groups.yml", rf"head: {HOSTS[0]}", f"head: {HOSTS[0]}, {ports}")
        self.edit(RECIPE, r"port: \d+ .*", f"port: {self.port}")
        self.edit(RECIPE, r"ready_s: \d+", "ready_s: 8")

    def deploy(self, *words: str) -> CommandResult:
        return self.run("deploy", "--host", starter.PAIR_GROUP, "--json", *words)

    def deployed(self) -> None:
        result = self.deploy()
        assert result.proved, result.out[-3000:] + result.err

    def folder_of(self, host: str) -> Path:
        return self.sandbox / "hosts" / host

    def engine_of(self, host: str) -> docker.DockerClient:
        """The host's Docker Engine."""
        return docker.DockerClient(base_url=control.up(self.folder_of(host))["DOCKER_HOST"])

    def running(self, host: str) -> list[dict[str, Any]]:
        """The host's running containers, inspected."""
        api = self.engine_of(host).api
        return [api.inspect_container(row["Id"]) for row in api.containers()]

    def ids(self) -> dict[str, str]:
        """The Id of each host's running container."""
        containers = {host: self.running(host) for host in HOSTS}
        assert all(len(rows) < 2 for rows in containers.values()), containers
        return {host: rows[0]["Id"] for host, rows in containers.items() if rows}

    def token(self, max_tokens: int = 1) -> tuple[int, str]:
        """Status and body of a request to the head; 0 without an answer."""
        body = json.dumps(
            {
                "model": "qwen3.5-35b",
                "prompt": "1",
                "max_tokens": max_tokens,
                "stream": max_tokens > 1,
                "ignore_eos": True,
            }
        ).encode()
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def change(self) -> None:
        """Ask for another server than the one that runs."""
        self.seqs = self.seqs % 60 + 1
        self.edit(RECIPE, r"max-num-seqs: \d+", f"max-num-seqs: {self.seqs}")

    def until_busy(self) -> None:
        """Wait until the head computes a request."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        deadline_s = time.monotonic() + 20
        while "num_requests_running" not in (text := urllib.request.urlopen(url, timeout=5).read().decode()) or not any(
            line.startswith("vllm:num_requests_running") and float(line.split()[-1]) > 0 for line in text.splitlines()
        ):
            assert time.monotonic() < deadline_s, "no request is computed"
            time.sleep(0.02)

    def close(self) -> None:
        control.down(self.sandbox)


@contextmanager
def pair_project() -> Iterator[PairProject]:
    """Yield a pair that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="pair-"))  # short: a unix socket's path has a limit
    value = PairProject(folder)
    try:
        yield value
    finally:
        value.close()
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
