"""The replacement of a server is created before the server is stopped, on a real Docker Engine."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from sparkwright.errors import Failed
from sparkwright.host.containers import replacement
from sparkwright.modules.server.container import Container
from sparkwright.modules.server.stop import StopAndKeep
from sparkwright.protocol.container import ContainerSpec
from tests.host.containers.test_log_reader import engine, shell
from tests.modules.context import RecordingContext

__all__ = ["engine", "shell"]
pytestmark = pytest.mark.docker


class DockerHost:
    """A host whose server runs in a real Docker Engine."""

    def __init__(self, engine: docker.DockerClient, image: str, home: Path) -> None:
        self.api: Any = engine.api
        self.image, self.name = image, f"replaced-{secrets.token_hex(4)}"
        self.home = home
        self.context = self.next_run()

    def next_run(self) -> RecordingContext:
        self.context = RecordingContext(self.home)
        return self.context

    def container(self, state: str = "started", **options: Any) -> dict[str, Any]:
        """Run the module with these options of the spec, and return its data."""
        argv = {"entrypoint": ("/bin/sh", "-c"), "command": ("yes > /dev/null",)}
        spec = ContainerSpec(**{"name": self.name, "image": self.image, "gpus": "", "ipc": "", **argv, **options})
        return Container().run(Container.Args(spec=spec.to_json(), state=state), self.context).data  # type: ignore[arg-type]

    def stop_and_keep(self) -> None:
        StopAndKeep().run(StopAndKeep.Args(self.name, stop_timeout_s=0), self.context)

    def containers(self) -> dict[str, str]:
        """Return the states of the server's containers by the suffix of their names."""
        rows = self.api.containers(all=True, filters={"name": self.name})
        return {row["Names"][0].removeprefix(f"/{self.name}"): row["State"] for row in rows}

    def replacement_id(self) -> str:
        return str(self.api.inspect_container(f"{self.name}-replacement")["Id"])

    def start(self) -> tuple[str, str]:
        """Return the Id of the server's container and the time of its start."""
        attrs = self.api.inspect_container(self.name)
        return attrs["Id"], attrs["State"]["StartedAt"]


@pytest.fixture
def spark(engine: docker.DockerClient, shell: str, tmp_path: Path) -> Iterator[DockerHost]:
    host = DockerHost(engine, shell, tmp_path)
    yield host
    for row in host.api.containers(all=True, filters={"name": host.name}):
        host.api.remove_container(row["Id"], force=True)


@pytest.fixture
def running(spark: DockerHost) -> DockerHost:
    """A host with a running server, in a later run."""
    spark.container()
    spark.next_run()
    return spark


NEW: dict[str, Any] = {"env": {"NEW": "1"}}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"log_driver": "no-such-driver"}, "no-such-driver"),
        ({"log_driver": "none"}, "keeps no log of the new container"),
        ({"cpus": 5000.0}, "Range of CPUs"),
        ({"cap_add": ("NO_SUCH",)}, "CAP_NO_SUCH"),
        ({"image": "sparkwright-test/none:v1", "env": {"NEW": "1"}}, "is not on the host"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_replacement_that_docker_refuses_does_not_stop_the_server(
    running: DockerHost, options: dict[str, Any], error: str
) -> None:
    before = running.start()
    with pytest.raises(Failed, match=error):
        running.container("created", **options)
    assert (running.start(), running.containers()) == (before, {"": "running"})


def test_the_same_run_starts_the_created_replacement_under_the_servers_name(running: DockerHost) -> None:
    old, _ = running.start()
    running.container("created", **NEW)
    assert running.containers() == {"": "running", "-replacement": "created"}
    new = running.replacement_id()
    running.stop_and_keep()
    assert running.container(**NEW)["id"] == new
    assert running.containers() == {"": "running", "-previous": "exited"}
    assert running.start()[0] == new != old
    replacement.discard_created(running.context)
    assert running.start()[0] == new


def test_an_interim_server_does_not_use_the_replacement(running: DockerHost) -> None:
    running.container("created", **NEW)
    new = running.replacement_id()
    running.container(**NEW, name=f"{running.name}-interim")
    assert running.containers() == {"": "running", "-interim": "running", "-replacement": "created"}
    running.stop_and_keep()
    assert running.container(**NEW)["id"] == new


def test_a_replacement_of_an_earlier_run_is_created_again(running: DockerHost) -> None:
    before = running.start()
    running.container("created", **NEW)
    earlier = running.replacement_id()
    running.next_run()
    assert replacement.find_current(running.context, running.name)["Id"] == before[0]
    assert running.container("created", **NEW)["left"]
    assert running.replacement_id() != earlier
    replacement.discard_created(running.context)
    assert (running.start(), running.containers()) == (before, {"": "running"})


def test_a_replacement_of_an_earlier_run_is_removed_if_nothing_changes(running: DockerHost) -> None:
    before = running.start()
    running.container("created", **NEW)
    running.next_run()
    assert running.container("created") | {"msg": ""} == running.container("created") | {"msg": "", "left": False}
    assert (running.start(), running.containers()) == (before, {"": "running"})


def test_a_start_without_a_replacement_does_not_use_that_of_another_run(spark: DockerHost) -> None:
    """The playbooks of a project may start a server without creating a replacement first."""
    spark.container("created", env={"LEFT": "1"})
    spark.next_run()
    assert replacement.find_current(spark.context, spark.name) == {}
    spark.container()
    assert spark.containers() == {"": "running"}
    assert not spark.api.inspect_container(spark.name)["Config"]["Env"]
