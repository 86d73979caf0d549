"""A container that is not running needs a restart and can be stopped, on a real Docker Engine."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.host.containers import ownership
from sparkwright.modules.proof.liveness import Liveness
from sparkwright.modules.server.stop import Stopped
from tests.host.containers.test_log_reader import engine, shell
from tests.modules.context import RecordingContext
from tests.waiting import wait_until

__all__ = ["engine", "shell"]

UNREACHABLE = "http://127.0.0.1:1"
WAIT = "read line"  # its standard input stays open without data


@pytest.fixture
def make_container(engine: docker.DockerClient, shell: str, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Yield a function that starts a container with a script and the restart policy of a verified server."""
    containers: list[Any] = []

    def make(script: str) -> Any:
        name = f"sparkwright-test-{uuid.uuid4().hex[:12]}"
        options: dict[str, Any] = {"name": name, "detach": True, "network_mode": "none", "stdin_open": True}
        options["labels"] = ownership.build_labels(RecordingContext(tmp_path), "server", name)
        options["restart_policy"] = {"Name": "unless-stopped", "MaximumRetryCount": 0}
        containers.append(engine.containers.run(shell, ["/bin/sh", "-c", script], **options))
        return containers[-1]

    yield make
    for container in containers:
        container.remove(force=True)


def read_status(container: Any) -> str:
    container.reload()
    return str(container.status)


def kill(container: Any) -> None:
    container.kill()
    wait_until(lambda: read_status(container) == "exited", "the end of the container")


def wait_for_restarts(container: Any) -> None:
    wait_until(lambda: read_status(container) == "restarting", "a restart")


@pytest.mark.docker
@pytest.mark.parametrize(
    ("act", "script", "messages"),
    [
        (lambda container: container.stop(timeout=0), WAIT, ["has exited"]),
        (kill, WAIT, ["has exited"]),
        (lambda container: container.pause(), WAIT, ["is paused"]),
        (wait_for_restarts, "exit 3", ["is restarting", "ended and was started again"]),  # it may be running just now
    ],
    ids=["stopped", "killed", "paused", "crash loop"],
)
def test_container_that_is_not_running_is_silent_and_can_be_stopped(
    make_container: Callable[[str], Any], tmp_path: Path, act: Callable[[Any], None], script: str, messages: list[str]
) -> None:
    container = make_container(script)
    act(container)
    context = RecordingContext(tmp_path)
    result = Liveness().run(Liveness.Args(name=container.name, base_url=UNREACHABLE), context)
    assert result.data["silent"] and any(message in result.msg for message in messages), result.msg
    spec = {"name": container.name, "restart": "unless-stopped"}
    context.state.write("verified", {"spec": spec, "container_id": container.id, "since": 1.0})
    Stopped().run(Stopped.Args(name=container.name, stop_timeout_s=1), context)
    assert read_status(container) == "exited"
    assert container.attrs["HostConfig"]["RestartPolicy"]["Name"] == "no"
    record = context.state.read("previous") or {}
    assert (record["id"], record["policy"], record["running"]) == (container.id, "unless-stopped", True)
    again = Stopped().run(Stopped.Args(name=container.name), context)
    assert (again.changed, (context.state.read("previous") or {})["policy"]) == (False, "unless-stopped")
