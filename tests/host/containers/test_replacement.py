"""A server's replacement is created before the server is stopped, on a real Docker Engine."""

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
        """Run the module with a spec that has these options. Returns its data."""
        argv = {"entrypoint": ("/bin/sh", "-c"), "command": ("yes > /dev/null",)}
        spec = ContainerSpec(**{"name": self.name, "image": self.image, "gpus": "", "ipc": "", **argv, **options})
        return Container().run(Container.Args(spec=spec.to_json(), state=state), self.context).data  # type: ignore[arg-type]

    def stop_and_keep(self) -> None:
        StopAndKeep().run(StopAndKeep.Args(self.name, stop_timeout_s=0), self.context)

    def containers(self) -> dict[str, str]:
        """Return the status of each container by its name after the server's."""
        rows = self.api.containers(all=True, filters={"name": self.name})
        return {row["Names"][0].removeprefix(f"/{self.name}"): row["State"] for row in rows}

    def start(self) -> tuple[str, str]:
        """Return the server's container and the time of its start."""
        attrs = self.api.inspect_container(self.name)
        return attrs["Id"], attrs["State"]["StartedAt"]


@pytest.fixture
def spark(engine: docker.DockerClient, shell: str, tmp_path: Path) -> Iterator[DockerHost]:
    host = DockerHost(engine, shell, tmp_path)
    yield host
    for row in host.api.containers(all=True, filters={"name": host.name}):
        host.api.remove_container(row["Id"], force=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"log_driver": "no-such-driver"}, "no-such-driver"),
        ({"cpus": 5000.0}, "Range of CPUs"),
        ({"cap_add": ("NO_SUCH",)}, "CAP_NO_SUCH"),
        ({"image": "sparkwright-test/none:v1", "env": {"NEW": "1"}}, "is not on the host"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_the_engine_refuses_leaves_the_server_as_it_runs(
    spark: DockerHost, options: dict[str, Any], words: str
) -> None:
    spark.container()
    before = spark.start()
    with pytest.raises(Failed, match=words):
        spark.container("created", **options)
    assert (spark.start(), spark.containers()) == (before, {"": "running"})


def test_the_run_that_created_it_starts_this_very_container_under_the_servers_name(spark: DockerHost) -> None:
    spark.container()
    old, _ = spark.start()
    spark.next_run()
    spark.container("created", env={"NEW": "1"})
    assert spark.containers() == {"": "running", "-replacement": "created"}
    new = spark.api.inspect_container(f"{spark.name}-replacement")["Id"]
    spark.stop_and_keep()
    assert spark.container(env={"NEW": "1"})["id"] == new
    assert spark.containers() == {"": "running", "-previous": "exited"}
    assert spark.start()[0] == new != old
    replacement.discard_created(spark.context)
    assert spark.start()[0] == new


def test_the_start_of_an_interim_server_leaves_it_for_the_server(spark: DockerHost) -> None:
    spark.container()
    spark.next_run()
    spark.container("created", env={"NEW": "1"})
    new = spark.api.inspect_container(f"{spark.name}-replacement")["Id"]
    spark.container(env={"NEW": "1"}, name=f"{spark.name}-interim")
    assert spark.containers() == {"": "running", "-interim": "running", "-replacement": "created"}
    spark.stop_and_keep()
    assert spark.container(env={"NEW": "1"})["id"] == new


def test_one_that_an_earlier_run_left_is_no_server_and_is_created_again(spark: DockerHost) -> None:
    spark.container()
    before = spark.start()
    spark.next_run()
    spark.container("created", env={"NEW": "1"})
    left = spark.api.inspect_container(f"{spark.name}-replacement")["Id"]
    spark.next_run()
    assert replacement.find_current(spark.context, spark.name)["Id"] == before[0]
    assert spark.container("created", env={"NEW": "1"})["left"]
    assert spark.api.inspect_container(f"{spark.name}-replacement")["Id"] != left
    replacement.discard_created(spark.context)
    assert (spark.start(), spark.containers()) == (before, {"": "running"})


def test_where_nothing_is_to_be_replaced_what_an_earlier_run_left_goes(spark: DockerHost) -> None:
    spark.container()
    before = spark.start()
    spark.next_run()
    spark.container("created", env={"NEW": "1"})
    spark.next_run()
    assert spark.container("created") | {"msg": ""} == spark.container("created") | {"msg": "", "left": False}
    assert (spark.start(), spark.containers()) == (before, {"": "running"})


def test_a_start_without_it_takes_no_container_of_another_run(spark: DockerHost) -> None:
    """A project's own playbooks do not create it first."""
    spark.container("created", env={"LEFT": "1"})
    spark.next_run()
    assert replacement.find_current(spark.context, spark.name) == {}
    spark.container()
    assert spark.containers() == {"": "running"}
    assert not spark.api.inspect_container(spark.name)["Config"]["Env"]
