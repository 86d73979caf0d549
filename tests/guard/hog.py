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
SYSTEM = {path: {"bind": path, "mode": "ro"} for path in ("/usr", "/lib", "/lib64")}

Hog = Callable[..., Any]


@pytest.fixture
def hog(engine: docker.DockerClient, shell: str) -> Iterator[Hog]:
    """Yield a function that creates a container which takes memory once it is started.

    Its arguments are the rate in MiB a second and the maximum in MiB.
    """
    made: list[Any] = []

    def create(rate: float, most: int, restart: str = "no") -> Any:
        name = f"sparkwright-test-guard-{uuid.uuid4().hex[:12]}"
        words = ["/usr/bin/python3", "-c", SCRIPT, str(rate), str(most)]
        policy = {"Name": restart, "MaximumRetryCount": 0}
        more: dict[str, Any] = {"name": name, "network_mode": "none", "volumes": SYSTEM, "restart_policy": policy}
        made.append(engine.containers.create(shell, words, **more))
        return made[-1]

    yield create
    for item in made:
        item.remove(force=True)
