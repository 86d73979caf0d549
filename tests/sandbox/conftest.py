"""A sandbox's simulated Docker Engine, and containers in it."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.sandbox import control
from tests.remote.sshd import free_port

IMAGE = "vllm/vllm-openai:v0.32.0"
REPOSITORY, TAG = IMAGE.split(":")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """The folder of a running sandbox."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
        folder = Path(tempfile.mkdtemp(prefix="spark-"))
        control.up(folder)
        yield folder
        control.down(folder)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def engine(home: Path) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=control.up(home)["DOCKER_HOST"])
    pull_image(client)
    yield client
    for row in client.api.containers(all=True):
        client.api.remove_container(row["Id"], force=True)


def pull_image(client: docker.DockerClient, tag: str = TAG) -> None:
    digest = client.api.inspect_distribution(f"{REPOSITORY}:{tag}")["Descriptor"]["digest"]
    client.api.pull(REPOSITORY, tag=digest)
    client.api.tag(f"{REPOSITORY}@{digest}", REPOSITORY, tag)


def create_container(
    engine: docker.DockerClient, name: str, model: Path, *, utilization: float = 0.1, port: int = 0, **host_config: Any
) -> None:
    """Create a container of vLLM. Several fit into the memory, unless they use more than a tenth of it."""
    ports = {"8000/tcp": [{"HostIp": "", "HostPort": str(port or free_port())}]}
    host = {"Binds": [f"{model}:/m"], "PortBindings": ports, **host_config}
    words = ["--model", "/m", "--gpu-memory-utilization", str(utilization)]
    engine.api.create_container_from_config({"Image": IMAGE, "Cmd": words, "HostConfig": host}, name)
