"""A project with a cluster of two simulated Sparks, as `sandbox.pair` writes it, on free ports."""

import contextlib
import json
import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.project import starter
from sparkwright.sandbox import control
from tests.e2e.conftest import SHORTENED_TASKS, CommandResult, SandboxProject
from tests.remote.sshd import free_port

HOSTS = (starter.PAIR_HEAD, starter.PAIR_WORKER)
RECIPE = f"recipes/{starter.PAIR_RECIPE}.yml"
NAME = "qwen35-pair"


class PairProject(SandboxProject):
    """Commands take the group's name as --host."""

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
        return docker.DockerClient(base_url=control.up(self.folder_of(host))["DOCKER_HOST"])

    def running(self, host: str) -> list[dict[str, Any]]:
        """Return what Docker tells of the host's running containers."""
        api = self.engine_of(host).api
        return [api.inspect_container(row["Id"]) for row in api.containers()]

    def ids(self) -> dict[str, str]:
        """Return the Id of each host's running container."""
        containers = {host: self.running(host) for host in HOSTS}
        assert all(len(rows) < 2 for rows in containers.values()), containers
        return {host: rows[0]["Id"] for host, rows in containers.items() if rows}

    def token(self, max_tokens: int = 1) -> tuple[int, str]:
        """Send a request to the head, and return its status, 0 without an answer, and body."""
        body = {"model": "qwen3.5-35b", "prompt": "1", "max_tokens": max_tokens, "ignore_eos": True}
        data = json.dumps({**body, "stream": max_tokens > 1}).encode()
        url = f"http://127.0.0.1:{self.port}/v1/completions"
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def change(self) -> None:
        """Change the recipe, so that the next deploy replaces the server."""
        self.seqs = self.seqs % 60 + 1
        self.edit(RECIPE, r"max-num-seqs: \d+", f"max-num-seqs: {self.seqs}")


@contextmanager
def pair_project() -> Iterator[PairProject]:
    folder = Path(tempfile.mkdtemp(prefix="pair-"))  # short: a unix socket's path has a limit
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        value = PairProject(folder)
        try:
            yield value
        finally:
            control.down(value.sandbox)
            with contextlib.suppress(OSError):
                shutil.rmtree(folder)
