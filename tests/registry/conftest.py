"""A registry, a faulty proxy in front of it, and the real Docker Engine; skipped if they are not available."""

import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.modules.context import RecordingContext
from tests.registry.images import Images
from tests.registry.server import PROGRAM, Proxy, Registry


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    if PROGRAM is None:
        pytest.skip("no docker-registry (Debian's package of that name)")
    value = Registry(tmp_path / "registry")
    value.start()
    yield value
    value.stop()


@pytest.fixture
def proxy(registry: Registry) -> Iterator[Proxy]:
    value = Proxy(registry)
    yield value
    value.close()


@pytest.fixture
def engine(repository: str) -> Iterator[Any]:
    """Yield the API of the local Docker Engine; images of the test's repository are removed afterwards."""
    import docker

    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        pytest.skip("no Docker Engine answers")
    client = docker.DockerClient()
    yield client.api
    for image in client.api.images():
        names = [*(image.get("RepoTags") or ()), *(image.get("RepoDigests") or ())]
        if any(f"/{repository}" in name for name in names):
            client.api.remove_image(image["Id"], force=True)
    client.close()


@pytest.fixture
def repository() -> str:
    """Return a name that no other test uses."""
    return f"test-{secrets.token_hex(4)}/vllm"


@pytest.fixture
def context(tmp_path: Path) -> RecordingContext:
    return RecordingContext(tmp_path / "home", architecture="x86_64")


@pytest.fixture
def images(registry: Registry, repository: str, context: RecordingContext, engine: Any) -> Images:
    del engine  # removes the pulled images
    return Images(registry, repository, context)
