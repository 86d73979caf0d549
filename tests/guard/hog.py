"""A container that takes memory at a rate, on a real Docker Engine, within bounds that leave memory to other tests."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import docker
import pytest

from tests.host.containers.test_log_reader import engine, shell

__all__ = ["engine", "hog", "shell"]

#: takes `rate` MiB a second up to `most` MiB, then stays. One write a page makes it resident
SCRIPT = """
import sys, time
rate, most, step = float(sys.argv[1]), int(sys.argv[2]), 32
kept, began = [], time.monotonic()
while len(kept) * step < most:
    kept.append(b"x" * (step << 20))
    time.sleep(max(0.0, began + len(kept) * step / rate - time.monotonic()))
print("full", flush=True)
time.sleep(600)
"""
#: what of this machine a container needs to run Python
SYSTEM_MOUNTS = {path: {"bind": path, "mode": "ro"} for path in ("/usr", "/lib", "/lib64")}

Hog = Callable[..., Any]


@pytest.fixture
def hog(engine: docker.DockerClient, shell: str) -> Iterator[Hog]:
    """Yield a function that creates a container which takes memory once it is started.

    Its arguments are the rate in MiB a second and the maximum in MiB.
    """
    containers: list[Any] = []

    def create(rate: float, max_mib: int, restart: str = "no") -> Any:
        name = f"sparkwright-test-guard-{uuid.uuid4().hex[:12]}"
        command = ["/usr/bin/python3", "-c", SCRIPT, str(rate), str(max_mib)]
        policy = {"Name": restart, "MaximumRetryCount": 0}
        options: dict[str, Any] = {
            "name": name,
            "network_mode": "none",
            "volumes": SYSTEM_MOUNTS,
            "restart_policy": policy,
        }
        containers.append(engine.containers.create(shell, command, **options))
        return containers[-1]

    yield create
    for item in containers:
        item.remove(force=True)
