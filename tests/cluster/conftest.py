"""A cluster of two hosts on this machine: the images of a module, and a project for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.sandbox import hub
from sparkwright.sandbox.http_server import Server
from tests import engine_beside
from tests.cluster.pair import ClusterPair
from tests.real_llama.container_desk import Images, published


@pytest.fixture(scope="module")
def hub_url() -> Iterator[str]:
    server = Server(0, hub.HubApi, hub.Hub())
    server.start()
    yield f"http://127.0.0.1:{server.port}"
    server.stop()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Images]:
    with published(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture(scope="module")
def second_engine() -> Iterator[str]:
    """Yield DOCKER_HOST of the second host's engine, which uses the bridge of the first one."""
    with engine_beside.second_engine(["--bridge=docker0"]) as (address, _):
        yield address


@pytest.fixture
def pair(tmp_path: Path, images: Images, hub_url: str, second_engine: str) -> Iterator[ClusterPair]:
    value = ClusterPair(tmp_path, images, hub_url, ("", second_engine))
    try:
        yield value
    finally:
        value.close()
