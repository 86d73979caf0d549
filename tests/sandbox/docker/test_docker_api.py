"""The simulated Docker Engine answers the Docker SDK and the docker command like a real one."""

import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError, ImageNotFound

from sparkwright.sandbox import control
from sparkwright.sandbox.docker.container import STDOUT
from sparkwright.sandbox.docker.docker_api import log_frames
from tests.remote.sshd import free_port
from tests.sandbox.test_parts import IMAGE
from tests.waiting import wait_until

REPOSITORY, TAG = IMAGE.split(":")


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}')
    return folder


def create_container(engine: docker.DockerClient, name: str, model: Path, **fields: Any) -> None:
    ports = {"8000/tcp": [{"HostIp": "", "HostPort": str(free_port())}]}
    host = {"Binds": [f"{model}:/m"], "PortBindings": ports, **fields}
    words = ["--model", "/m", "--gpu-memory-utilization", "0.1"]  # little enough for several containers at once
    engine.api.create_container_from_config({"Image": IMAGE, "Cmd": words, "HostConfig": host}, name)


def start_serving(engine: docker.DockerClient, name: str, model: Path, **fields: Any) -> Any:
    create_container(engine, name, model, **fields)
    engine.api.start(name)
    container = engine.containers.get(name)
    wait_until(lambda: b"Application startup complete." in container.logs())
    return container


def test_a_container_lists_its_mounts(engine: docker.DockerClient, model: Path) -> None:
    """sparkwright reads the mounts to find out which models are in use."""
    create_container(engine, "one", model, Binds=[f"{model}:/m:ro"])
    (mount,) = engine.api.inspect_container("one")["Mounts"]
    assert (mount["Type"], mount["Source"], mount["Destination"], mount["RW"]) == ("bind", str(model), "/m", False)
    assert engine.api.containers(all=True)[0]["Mounts"] == [mount]


def refusal_of(action: Any) -> tuple[int, str]:
    with pytest.raises(APIError) as excinfo:
        action()
    return excinfo.value.status_code, excinfo.value.explanation


def container_names(engine: docker.DockerClient, **query: Any) -> list[str]:
    return sorted(row["Names"][0][1:] for row in engine.api.containers(**query))


def test_containers_are_filtered(engine: docker.DockerClient, model: Path) -> None:
    start_serving(engine, "up", model)
    create_container(engine, "down", model)
    body = {"Image": IMAGE, "Cmd": ["--version"], "Labels": {"a": "1", "b": "2"}, "HostConfig": {}}
    key = engine.api.create_container_from_config(body, "labelled")["Id"]
    assert container_names(engine) == ["up"]
    assert container_names(engine, all=True) == ["down", "labelled", "up"]
    for filters, names_expected in (
        ({"name": "^up$"}, ["up"]), ({"name": ["^/down$", "labelled"]}, ["down", "labelled"]), ({"label": "a=1"}, ["labelled"]),
        ({"label": ["a=1", "b=3"]}, []), ({"label": "b"}, ["labelled"]), ({"status": "created"}, ["down", "labelled"]),
        ({"id": key[:12]}, ["labelled"]), ({"ancestor": IMAGE}, ["down", "labelled", "up"]), ({"ancestor": "other"}, []),
        ({"name": "up", "status": "created"}, []),
    ):  # fmt: skip
        assert container_names(engine, all=True, filters=filters) == names_expected, filters
    assert container_names(engine, filters={"status": "created"}) == ["down", "labelled"]
    assert container_names(engine, all=True, limit=1) == ["labelled"]
    assert engine.api.containers(all=True)[0]["Labels"]["a"] == "1"
    assert refusal_of(lambda: engine.api.containers(filters={"colour": "red"})) == (400, "invalid filter 'colour'")


def test_stop_is_graceful_and_a_second_stop_returns_304(engine: docker.DockerClient, model: Path) -> None:
    container = start_serving(engine, "one", model, RestartPolicy={"Name": "unless-stopped"})
    container.stop()
    assert container.wait()["StatusCode"] == 0
    assert b"[shutdown] API server: shutdown triggered" in container.logs()
    response = engine.api._post(engine.api._url("/containers/{0}/stop", "one"))
    assert response.status_code == 304


def test_a_container_that_ignores_sigterm_is_killed_after_the_timeout(
    engine: docker.DockerClient, home: Path, model: Path
) -> None:
    container = start_serving(engine, "one", model)
    control.set_fault(home, "stubborn")
    began_s = time.monotonic()
    container.stop(timeout=1)
    assert time.monotonic() - began_s > 0.9
    control.set_fault(home, None)
    assert container.wait()["StatusCode"] == 137


def test_logs_are_selected_by_tail_time_and_stream(engine: docker.DockerClient, model: Path) -> None:
    container = start_serving(engine, "one", model)
    complete = container.logs().splitlines()
    assert container.logs(tail=2).splitlines() == complete[-2:]
    assert container.logs(tail=0) == b""
    assert container.logs(since=int(time.time()) + 60) == b""
    assert container.logs(since=int(time.time()) - 60).splitlines() == complete
    assert container.logs(until=int(time.time()) - 60) == b""
    stamped = container.logs(timestamps=True, tail=1).decode()
    assert stamped[4] == "-" and stamped.split(" ")[0].endswith("Z") and "Application startup complete." in stamped
    parts = [container.logs(stdout=out, stderr=not out) for out in (True, False)]
    assert b"non-default args" in parts[0] and b"Application startup complete." not in parts[0]
    assert b"Application startup complete." in parts[1] and b"non-default args" not in parts[1]
    status, result = refusal_of(lambda: container.logs(stdout=False, stderr=False))
    assert (status, result) == (400, "Bad parameters: you must choose at least one stream")


def test_following_the_log_ends_with_the_container(engine: docker.DockerClient, model: Path) -> None:
    container = start_serving(engine, "one", model)
    seen: list[bytes] = []
    follower = threading.Thread(target=lambda: seen.extend(container.logs(stream=True, follow=True, tail=1)))
    follower.start()
    wait_until(lambda: seen)
    assert follower.is_alive()
    container.stop()
    follower.join(timeout=5)
    assert not follower.is_alive()
    assert b"Application shutdown complete." in b"".join(seen)


class GrowingLogs(list[tuple[float, str, int]]):
    """Log lines of a program that logs another line after each read."""

    def __getitem__(self, key: Any) -> Any:
        rows = super().__getitem__(key)
        if len(self) < 6:
            self.append((time.time(), f"line {len(self)}", STDOUT))
        return rows


def test_a_follower_receives_each_line_once_even_if_it_is_logged_during_a_read() -> None:
    class LoggingContainer:
        logs = GrowingLogs([(time.time(), "line 0", STDOUT)])

        @property
        def running(self) -> bool:
            return len(self.logs) < 6

    frames = log_frames(LoggingContainer(), {"stdout": "1", "follow": "1"})  # type: ignore[arg-type]
    assert [frame[8:].decode() for frame in frames] == [f"line {n}\n" for n in range(6)]


@pytest.mark.parametrize(
    ("entrypoint", "command"),
    [
        ("vllm", ["--version"]),
        (["vllm", "--version"], None),
        ("python3", ["-c", "import vllm; print(vllm.__version__)"]),
    ],
)
def test_a_temporary_container_prints_the_version(engine: docker.DockerClient, entrypoint: Any, command: Any) -> None:
    for tag, version in ((TAG, "0.32.0"), ("cu130-nightly", "0.19.2rc1.dev134+gsandbox")):
        pull_image(engine, tag)
        result = engine.containers.run(f"{REPOSITORY}:{tag}", command, entrypoint=entrypoint, remove=True)
        assert result.decode().strip() == version
    assert container_names(engine, all=True) == []


def test_a_container_with_auto_remove_is_removed_after_its_end(engine: docker.DockerClient) -> None:
    engine.containers.run(IMAGE, ["--version"], entrypoint="vllm", auto_remove=True, detach=True)
    wait_until(lambda: container_names(engine, all=True) == [])


def test_start_refuses_a_missing_program(engine: docker.DockerClient) -> None:
    status, result = refusal_of(lambda: engine.containers.run(IMAGE, ["-l"], entrypoint="nvtop"))
    assert status == 400 and 'exec: "nvtop": executable file not found in $PATH' in result
    assert engine.api.containers(all=True)[0]["State"] == "created"


def test_an_image_in_use_is_not_removed(engine: docker.DockerClient, model: Path) -> None:
    container = start_serving(engine, "one", model)
    status, result = refusal_of(lambda: engine.images.remove(IMAGE, force=True))
    assert (
        status == 409 and f"(cannot be forced) - image is being used by running container {container.id[:12]}" in result
    )
    container.stop()
    status, result = refusal_of(lambda: engine.images.remove(IMAGE))
    assert status == 409 and "(must be forced) - image is being used by stopped container" in result
    container.remove()
    engine.api.tag(IMAGE, REPOSITORY, "mine")
    engine.images.remove(f"{REPOSITORY}:mine")
    assert engine.images.get(IMAGE).tags == [IMAGE]
    engine.images.remove(IMAGE)
    with pytest.raises(ImageNotFound, match="No such image"):
        engine.images.get(IMAGE)


def test_only_a_pull_by_tag_adds_a_tag(engine: docker.DockerClient) -> None:
    """As in Docker, a pull without a tag pulls `latest`."""
    engine.api.pull(REPOSITORY, tag="nightly")
    assert engine.images.get(f"{REPOSITORY}:nightly").tags == [f"{REPOSITORY}:nightly"]
    other, tag = "ghcr.io/ggml-org/llama.cpp", "server-cuda13"
    digest = engine.api.inspect_distribution(f"{other}:{tag}")["Descriptor"]["digest"]
    engine.api.pull(other, tag=digest)
    assert engine.images.get(f"{other}@{digest}").tags == []
    with pytest.raises(ImageNotFound):
        engine.images.get(f"{other}:{tag}")
    engine.api.pull(f"docker.io/{REPOSITORY}", tag="latest")
    assert engine.images.get(REPOSITORY).id == engine.images.get(f"docker.io/{REPOSITORY}:latest").id


def test_a_stopped_container_stays_stopped_after_a_restart_of_the_engine(
    home: Path, engine: docker.DockerClient, model: Path
) -> None:
    policy = {"RestartPolicy": {"Name": "unless-stopped"}}
    start_serving(engine, "stopped", model, **policy).stop()
    start_serving(engine, "running", model, **policy)
    (home / "state.json").unlink()
    client = docker.DockerClient(base_url=control.up(home)["DOCKER_HOST"])
    wait_until(lambda: container_names(client) == ["running"])
    assert container_names(client, all=True) == ["running", "stopped"]


def test_the_engine_restarts_although_the_port_of_a_container_is_taken(
    home: Path, engine: docker.DockerClient, model: Path
) -> None:
    start_serving(engine, "shut-out", model, RestartPolicy={"Name": "unless-stopped"})
    bindings = engine.api.inspect_container("shut-out")["HostConfig"]["PortBindings"]
    (home / "state.json").unlink()
    with socket.socket() as blocker:
        blocker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        wait_until(lambda: can_bind(blocker, int(bindings["8000/tcp"][0]["HostPort"])))
        blocker.listen()
        client = docker.DockerClient(base_url=control.up(home)["DOCKER_HOST"])
    assert (container_names(client), container_names(client, all=True)) == ([], ["shut-out"])
    client.api.start("shut-out")
    assert container_names(client) == ["shut-out"]


def can_bind(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True


#: commands of the real CLI: words, exit code, and part of the output
COMMANDS = [
    (("ps",), 0, "CONTAINER ID"),
    (("images",), 0, REPOSITORY),
    (("run", "-d", "--name", "detached", IMAGE, "--model", "no-such"), 0, ""),
    (("run", "--rm", IMAGE, "--model", "no-such"), 1, "HFValidationError"),
    (("exec", "ended", "ls"), 1, "the sandbox runs no real container, so it has no `exec`"),
    (("volume", "ls"), 1, "; it supports ps, images"),
]


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker CLI")
@pytest.mark.parametrize(("words", "code", "part"), COMMANDS)
def test_the_docker_command_is_answered_or_refused_with_a_sentence(
    engine: docker.DockerClient, home: Path, words: tuple[str, ...], code: int, part: str
) -> None:
    engine.api.create_container(IMAGE, name="ended")
    env = {**os.environ, **control.up(home)}
    result = subprocess.run(("docker", *words), env=env, capture_output=True, text=True, timeout=60)
    assert (result.returncode, part in result.stdout + result.stderr) == (code, True), result.stdout + result.stderr
