"""A container in any state other than running needs a restart and can be stopped for it, on a real Docker Engine."""

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

NOBODY = "http://127.0.0.1:1"
WAITS = "read line"  # its standard input stays open and is silent


@pytest.fixture
def make_container(engine: docker.DockerClient, shell: str, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Makes a container that runs a script and is started again by its policy, as a verified server is."""
    started: list[Any] = []

    def make(script: str) -> Any:
        name = f"sparkwright-test-{uuid.uuid4().hex[:12]}"
        words: dict[str, Any] = {"name": name, "detach": True, "network_mode": "none", "stdin_open": True}
        words["labels"] = ownership.build_labels(RecordingContext(tmp_path), "server", name)
        policy = {"Name": "unless-stopped", "MaximumRetryCount": 0}
        value = engine.containers.run(shell, ["/bin/sh", "-c", script], restart_policy=policy, **words)
        started.append(value)
        return value

    yield make
    for item in started:
        item.remove(force=True)


def status(container: Any) -> str:
    container.reload()
    return str(container.status)


def _stop(container: Any) -> None:
    container.stop(timeout=0)


def _kill(container: Any) -> None:
    container.kill()
    wait_until(lambda: status(container) == "exited", "its end")


def _pause(container: Any) -> None:
    container.pause()


def _wait_for_loop(container: Any) -> None:
    wait_until(lambda: status(container) == "restarting", "a loop")


@pytest.mark.docker
@pytest.mark.parametrize(
    ("happens", "script", "word"),
    [
        (_stop, WAITS, "has exited"),
        (_kill, WAITS, "has exited"),
        (_pause, WAITS, "is paused"),
        (_wait_for_loop, "exit 3", "is restarting|ended and was started again"),  # it may run at that moment,
    ],
)
def test_container_that_is_not_running_is_silent_and_can_be_stopped(
    engine: docker.DockerClient,
    make_container: Callable[[str], Any],
    tmp_path: Path,
    happens: Callable[[Any], None],
    script: str,
    word: str,
) -> None:
    value = make_container(script)
    happens(value)
    context = RecordingContext(tmp_path)
    result = Liveness().run(Liveness.Args(name=value.name, base_url=NOBODY), context)
    assert result.data["silent"] and any(item in result.msg for item in word.split("|")), result.msg
    context.state.write(
        "verified", {"spec": {"name": value.name, "restart": "unless-stopped"}, "container_id": value.id, "since": 1.0}
    )
    Stopped().run(Stopped.Args(name=value.name, stop_timeout_s=1), context)
    assert status(value) == "exited"
    assert value.attrs["HostConfig"]["RestartPolicy"]["Name"] == "no"
    kept = context.state.read("previous") or {}
    assert (kept["id"], kept["policy"], kept["running"]) == (value.id, "unless-stopped", True)
    again = Stopped().run(Stopped.Args(name=value.name), context)
    assert (again.changed, (context.state.read("previous") or {})["policy"]) == (False, "unless-stopped")
