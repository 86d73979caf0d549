"""The Docker Engine of this machine; tests are skipped if none answers."""

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def docker_client() -> Iterator[Any]:
    import docker

    if subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=60).returncode:
        pytest.skip("no Docker Engine answers")
    client = docker.from_env()
    yield client
    client.close()
