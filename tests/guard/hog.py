"""A container that allocates memory at a rate, up to a limit that leaves memory for other tests."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest

from tests.host.containers.test_log_reader import engine, shell
from tests.waiting import wait_until

__all__ = ["engine", "hog", "shell"]

#: allocates `rate` MiB per second up to `maximum` MiB, then sleeps
SCRIPT = """
import sys, time
rate, maximum, step = float(sys.argv[1]), int(sys.argv[2]), 32
blocks, began = [], time.monotonic()
while len(blocks) * step < maximum:
    blocks.append(b"x" * (step << 20))
    time.sleep(max(0.0, began + len(blocks) * step / rate - time.monotonic()))
print("full", flush=True)
time.sleep(600)
"""
#: folders of this machine that a container needs to run Python
SYSTEM_MOUNTS = {path: {"bind": path, "mode": "ro"} for path in ("/usr", "/lib", "/lib64")}

Hog = Callable[..., Any]


@pytest.fixture
def hog(engine: docker.DockerClient, shell: str) -> Iterator[Hog]:
    """Yield a function that creates a container by its rate in MiB per second and its maximum in MiB."""
    containers: list[Any] = []

    def create(rate: float, max_mib: int, restart: str = "no") -> Any:
        name = f"sparkwright-test-guard-{uuid.uuid4().hex[:12]}"
        command = ["/usr/bin/python3", "-c", SCRIPT, str(rate), str(max_mib)]
        options: dict[str, Any] = {"name": name, "network_mode": "none", "volumes": SYSTEM_MOUNTS}
        options["restart_policy"] = {"Name": restart, "MaximumRetryCount": 0}
        containers.append(engine.containers.create(shell, command, **options))
        return containers[-1]

    yield create
    for container in containers:
        container.remove(force=True)


def wait_until_full(container: Any) -> None:
    """Wait until the container has allocated all its memory."""
    wait_until(lambda: b"full" in container.logs(), "all its memory")
