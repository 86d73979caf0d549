"""The simulated Docker Engine answers the Docker SDK and the docker command like a real one."""

import os
import shutil
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import APIError, ImageNotFound

from sparkwright.sandbox import control
from sparkwright.sandbox.docker.container import STDOUT
from sparkwright.sandbox.docker.docker_api import log_frames
from tests.sandbox.conftest import IMAGE, REPOSITORY, TAG, create_container, pull_image
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}')
    return folder


def start_serving(engine: docker.DockerClient, name: str, model: Path, **host_config: Any) -> Any:
    create_container(engine, name, model, **host_config)
    engine.api.start(name)
    container = engine.containers.get(name)
    wait_until(lambda: b"Application startup complete." in container.logs())
    return container


def error_of(action: Any) -> tuple[int, str]:
    with pytest.raises(APIError) as excinfo:
        action()
    status, explanation = excinfo.value.status_code, excinfo.value.explanation
    assert status is not None and explanation is not None
    return status, explanation


def container_names(engine: docker.DockerClient, **query: Any) -> list[str]:
    return sorted(row["Names"][0][1:] for row in engine.api.containers(**query))


def test_containers_are_filtered(engine: docker.DockerClient, model: Path) -> None:
    start_serving(engine, "up", model)
    create_container(engine, "down", model)
    body = {"Image": IMAGE, "Cmd": ["--version"], "Labels": {"a": "1", "b": "2"}, "HostConfig": {}}
    key = engine.api.create_container_from_config(body, "labelled")["Id"]
    assert container_names(engine) == ["up"]
    assert container_names(engine, all=True) == ["down", "labelled", "up"]
    for filters, names in (
        ({"name": "^up$"}, ["up"]), ({"name": ["^/down$", "labelled"]}, ["down", "labelled"]), ({"label": "a=1"}, ["labelled"]),
        ({"label": ["a=1", "b=3"]}, []), ({"label": "b"}, ["labelled"]), ({"status": "created"}, ["down", "labelled"]),
        ({"id": key[:12]}, ["labelled"]), ({"ancestor": IMAGE}, ["down", "labelled", "up"]), ({"ancestor": "other"}, []),
        ({"name": "up", "status": "created"}, []),
    ):  # fmt: skip
        assert container_names(engine, all=True, filters=filters) == names, filters
    assert container_names(engine, filters={"status": "created"}) == ["down", "labelled"]
    assert container_names(engine, all=True, limit=1) == ["labelled"]
    assert engine.api.containers(all=True)[0]["Labels"]["a"] == "1"
    assert error_of(lambda: engine.api.containers(filters={"colour": "red"})) == (400, "invalid filter 'colour'")


def test_stop_is_graceful_and_a_second_stop_returns_304(engine: docker.DockerClient, model: Path) -> None:
    container = start_serving(engine, "one", model, RestartPolicy={"Name": "unless-stopped"})
    container.stop()
    assert container.wait()["StatusCode"] == 0
    assert b"[shutdown] API server: shutdown triggered" in container.logs()
    api: Any = engine.api  # its types lack the methods that return a response
    response = api._post(api._url("/containers/{0}/stop", "one"))
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
    stdout, stderr = container.logs(stderr=False), container.logs(stdout=False)
    assert b"non-default args" in stdout and b"Application startup complete." not in stdout
    assert b"Application startup complete." in stderr and b"non-default args" not in stderr
    error = error_of(lambda: container.logs(stdout=False, stderr=False))
    assert error == (400, "Bad parameters: you must choose at least one stream")


def test_following_the_log_ends_with_the_container(engine: docker.DockerClient, model: Path) -> None:
    container = start_serving(engine, "one", model)
    received: list[bytes] = []
    follower = threading.Thread(target=lambda: received.extend(container.logs(stream=True, follow=True, tail=1)))
    follower.start()
    wait_until(lambda: received)
    assert follower.is_alive()
    container.stop()
    follower.join(timeout=5)
    assert not follower.is_alive()
    assert b"Application shutdown complete." in b"".join(received)


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


PRINT_VERSION = ["-c", "import vllm; print(vllm.__version__)"]


@pytest.mark.parametrize(
    ("entrypoint", "command"),
    [("vllm", ["--version"]), (["vllm", "--version"], None), ("python3", PRINT_VERSION)],
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
    status, message = error_of(lambda: engine.containers.run(IMAGE, ["-l"], entrypoint="nvtop"))
    assert status == 400 and 'exec: "nvtop": executable file not found in $PATH' in message
    assert engine.api.containers(all=True)[0]["State"] == "created"


def test_an_image_in_use_is_not_removed(engine: docker.DockerClient, model: Path) -> None:
    container = start_serving(engine, "one", model)
    status, message = error_of(lambda: engine.images.remove(IMAGE, force=True))
    assert status == 409
    assert f"(cannot be forced) - image is being used by running container {container.id[:12]}" in message
    container.stop()
    status, message = error_of(lambda: engine.images.remove(IMAGE))
    assert status == 409 and "(must be forced) - image is being used by stopped container" in message
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


def test_the_engine_restarts_even_if_the_port_of_a_container_is_taken(
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


#: arguments of the real CLI, exit code, part of the output
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
def test_a_docker_command_works_or_is_refused_in_one_sentence(
    engine: docker.DockerClient, home: Path, words: tuple[str, ...], code: int, part: str
) -> None:
    engine.api.create_container(IMAGE, name="ended")
    env = {**os.environ, **control.up(home)}
    result = subprocess.run(("docker", *words), env=env, capture_output=True, text=True, timeout=60)
    assert (result.returncode, part in result.stdout + result.stderr) == (code, True), result.stdout + result.stderr
