"""The sandbox as a whole: taken names and ports, memory, and simultaneous starts."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError

from sparkwright.sandbox import control, hub
from sparkwright.sandbox.memory import SYSTEM_BYTES, TOTAL_BYTES
from sparkwright.sandbox.ollama import LARGE
from sparkwright.sandbox.serving.process import HOST_SIDE_BYTES
from sparkwright.units import GIB
from tests.remote.sshd import free_port

MODEL = "Qwen/Qwen3.5-35B-A3B-FP8"
IMAGE = "vllm/vllm-openai:v0.32.0"


@pytest.fixture(scope="module")
def spark() -> Iterator[dict[str, str]]:
    patch = pytest.MonkeyPatch()
    patch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    folder = Path(tempfile.mkdtemp(prefix="spark-"))
    yield control.up(folder)
    control.down(folder)
    shutil.rmtree(folder, ignore_errors=True)
    patch.undo()


@pytest.fixture
def engine(spark: dict[str, str]) -> Iterator[docker.DockerClient]:
    client = docker.DockerClient(base_url=spark["DOCKER_HOST"])
    client.api.pull(*IMAGE.split(":"))
    client.api.tag(
        f"{IMAGE.split(':')[0]}@{client.api.inspect_distribution(IMAGE)['Descriptor']['digest']}", *IMAGE.split(":")
    )
    yield client
    for row in client.api.containers(all=True):
        client.api.remove_container(row["Id"], force=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    for name in hub.list_files(MODEL):
        (folder / name).write_bytes(hub.file_content(MODEL, name))
    return folder


def create_container(engine: docker.DockerClient, name: str, model: Path, port: int = 0, **fields: Any) -> str:
    body = {
        "Image": IMAGE,
        "Cmd": ["--model", "/m", "--gpu-memory-utilization", "0.6"],
        "HostConfig": {
            "Binds": [f"{model}:/m"],
            "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": str(port or free_port())}]},
            **fields,
        },
    }
    return str(engine.api.create_container_from_config(body, name)["Id"])


def test_create_and_rename_refuse_a_taken_name(engine: docker.DockerClient, model: Path) -> None:
    create_container(engine, "one", model)
    create_container(engine, "two", model)
    for attempt in (lambda: create_container(engine, "one", model), lambda: engine.api.rename("two", "one")):
        with pytest.raises(APIError, match="is already in use by container") as excinfo:
            attempt()
        assert excinfo.value.status_code == 409


def test_start_refuses_a_taken_port_and_keeps_the_container(engine: docker.DockerClient, model: Path) -> None:
    port = free_port()
    for name in ("one", "two"):
        create_container(engine, name, model, port)
    engine.api.start("one")
    with pytest.raises(APIError, match="port is already allocated"):
        engine.api.start("two")
    assert engine.api.inspect_container("two")["State"]["Status"] == "created"


def test_memory_is_correct_after_a_quick_restart(
    engine: docker.DockerClient, spark: dict[str, str], model: Path
) -> None:
    import time

    def available() -> float:
        text = (Path(spark["SPARKWRIGHT_ROOT"]) / "proc/meminfo").read_text()
        return int(next(line for line in text.splitlines() if line.startswith("MemAvailable")).split()[1]) / 2**20

    def wait_until(expected: float) -> None:
        deadline_s = time.monotonic() + 60
        while abs(available() - expected) >= 1 and time.monotonic() < deadline_s:
            time.sleep(0.02)

    free, held = (TOTAL_BYTES - SYSTEM_BYTES - LARGE.loaded_bytes) / GIB, 0.6 * 119.7 + HOST_SIDE_BYTES / GIB
    wait_until(free)  # until the memory of an earlier test's container is released
    create_container(engine, "one", model)
    engine.api.start("one")
    wait_until(free - held)
    assert available() == pytest.approx(free - held, abs=1)
    engine.api.stop("one")
    wait_until(free)
    engine.api.start("one")
    wait_until(free - held)
    time.sleep(0.6)  # longer than LINGER_S: the memory of the first start must not be released twice
    assert available() == pytest.approx(free - held, abs=1)


def test_simultaneous_commands_start_a_single_sandbox(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    folder = Path(tempfile.mkdtemp(prefix="spark-"))
    with ThreadPoolExecutor(4) as pool:
        addresses = list(pool.map(lambda _: control.up(folder)["OLLAMA_HOST"], range(4)))
    control.down(folder)
    assert len(set(addresses)) == 1
