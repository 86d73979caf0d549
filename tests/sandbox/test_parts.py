"""The whole sandbox: taken names and ports, memory, and simultaneous starts."""

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import pytest
from docker.errors import APIError

from sparkwright.sandbox import control, hub
from sparkwright.sandbox.memory import SYSTEM_BYTES, TOTAL_BYTES
from sparkwright.sandbox.ollama import LARGE_MODEL
from sparkwright.sandbox.serving.process import HOST_MEMORY_BYTES
from sparkwright.units import GIB
from tests.remote.sshd import free_port
from tests.sandbox.conftest import create_container
from tests.waiting import wait_until

MODEL = "Qwen/Qwen3.5-35B-A3B-FP8"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    for name in hub.list_files(MODEL):
        (folder / name).write_bytes(hub.file_content(MODEL, name))
    return folder


def test_create_and_rename_refuse_a_taken_name(engine: docker.DockerClient, model: Path) -> None:
    create_container(engine, "one", model)
    create_container(engine, "two", model)
    attempts: tuple[Callable[[], object], ...] = (
        lambda: create_container(engine, "one", model),
        lambda: engine.api.rename("two", "one"),
    )
    for attempt in attempts:
        with pytest.raises(APIError, match="is already in use by container") as excinfo:
            attempt()
        assert excinfo.value.status_code == 409


def test_start_refuses_a_taken_port_and_keeps_the_container(engine: docker.DockerClient, model: Path) -> None:
    port = free_port()
    for name in ("one", "two"):
        create_container(engine, name, model, utilization=0.6, port=port)
    engine.api.start("one")
    with pytest.raises(APIError, match="port is already allocated"):
        engine.api.start("two")
    assert engine.api.inspect_container("two")["State"]["Status"] == "created"


def test_memory_is_correct_after_a_quick_restart(engine: docker.DockerClient, home: Path, model: Path) -> None:
    meminfo = Path(control.up(home)["SPARKWRIGHT_ROOT"]) / "proc/meminfo"

    def available() -> float:
        text = meminfo.read_text()
        return int(next(line for line in text.splitlines() if line.startswith("MemAvailable")).split()[1]) / 2**20

    def wait_for_available(expected: float) -> None:
        wait_until(lambda: abs(available() - expected) < 1, f"{expected:.1f} GiB of memory")

    free, held = (TOTAL_BYTES - SYSTEM_BYTES - LARGE_MODEL.loaded_bytes) / GIB, 0.6 * 119.7 + HOST_MEMORY_BYTES / GIB
    wait_for_available(free)  # until the memory of an earlier test's container is released
    create_container(engine, "one", model, utilization=0.6)
    engine.api.start("one")
    wait_for_available(free - held)
    engine.api.stop("one")
    wait_for_available(free)
    engine.api.start("one")
    wait_for_available(free - held)
    time.sleep(0.6)  # longer than RELEASE_DELAY_S: the memory of the first start must not be released twice
    assert available() == pytest.approx(free - held, abs=1)


def test_simultaneous_commands_start_a_single_sandbox() -> None:
    with tempfile.TemporaryDirectory(prefix="spark-") as folder, ThreadPoolExecutor(4) as pool:
        addresses = list(pool.map(lambda _: control.up(Path(folder))["OLLAMA_HOST"], range(4)))
        control.down(Path(folder))
    assert len(set(addresses)) == 1
