"""A new container has no drift, for all options of a recipe and an image, with a real Docker Engine."""

from collections.abc import Iterator
from typing import Any

import pytest

from sparkwright.host.containers import container_options, containers
from sparkwright.modules.server.container import Container
from sparkwright.protocol.container import ContainerSpec, locked_ids
from tests.registry.images import Images
from tests.remote.sshd import free_port

pytestmark = pytest.mark.docker

IMAGE = {
    "Env": ["PATH=/bin", "LEVEL=INFO", "EMPTY=", "PAIR=a=b"],
    "Labels": {"made.by": "tests", "sparkwright.run": "an earlier one"},
    "Entrypoint": ["/wait", "serve"],
    "Cmd": ["--of", "image"],
    "User": "1000:1000",
    "WorkingDir": "/work",
    "Volumes": {"/data": {}},
    "ExposedPorts": {"8000/tcp": {}},
    "Healthcheck": {"Test": ["CMD", "/wait"], "Interval": 60_000_000_000},
    "StopSignal": "SIGKILL",
}
#: changes to the config of the image, and the options of the recipe
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no options": ({}, {}),
    "minimal image": (dict.fromkeys(IMAGE) | {"Cmd": ["/wait"]}, {}),
    "minimal image and a command": (dict.fromkeys(IMAGE), {"command": ["/wait", "--port", "8000"]}),
    "environment of the image": ({}, {"env": {"LEVEL": "INFO", "EMPTY": "", "PAIR": "a=b"}}),
    "other environment": ({}, {"env": {"LEVEL": "", "MORE": "ü \n'\"$(id)", "PATH": "/usr/bin"}}),
    "label of the image": ({}, {"labels": {"made.by": "tests"}}),
    "other labels": ({}, {"labels": {"made.by": "me", "com.example.a": "b", "empty": ""}}),
    "entrypoint of the image": ({}, {"entrypoint": ["/wait", "serve"], "command": ["--a"]}),
    "entrypoint of the image without a command": ({}, {"entrypoint": ["/wait", "serve"]}),
    "entrypoint of one word": ({"Entrypoint": ["/wait"]}, {"entrypoint": ["/wait"], "command": ["--a"]}),
    "other entrypoint": ({}, {"entrypoint": ["/wait", "-m", "vllm"], "command": ["--a", "b"]}),
    "empty entrypoint": ({}, {"entrypoint": [], "command": ["--a"]}),
    "removed entrypoint": ({}, {"entrypoint": [""], "command": ["/wait", "--a"]}),
    "command of the image": ({}, {"command": ["--of", "image"]}),
    "ipc unset": ({}, {"ipc": ""}),
    "ipc private": ({}, {"ipc": "private"}),
    "ipc shareable": ({}, {"ipc": "shareable"}),
    "ipc none": ({}, {"ipc": "none"}),
    "ipc and memory of the host": ({}, {"ipc": "host", "shm_size": "16m"}),
    "memory in megabytes": ({}, {"ipc": "private", "shm_size": "1.5MiB"}),
    "memory in bytes": ({}, {"ipc": "private", "shm_size": "16777216"}),
    "memory of 0": ({}, {"ipc": "private", "shm_size": "0"}),
    "ports": ({}, {"ports": ["127.0.0.1:PORT:8000", "127.0.0.1:PORT:8000/tcp", "127.0.0.1:PORT:9000/udp", "[::1]:PORT:7000"]}),
    "volumes": ({}, {"volumes": ["/usr/share/:/b/:ro", "/usr/lib:/a", "/etc/hostname:/c:rw", "NAMED:/d"]}),
    "volume over that of the image": ({}, {"volumes": ["/usr/share:/data:ro"]}),
    "limits": ({}, {"ulimits": {"nofile": "512:1024", "core": "0"}}),
    "all options": (
        {},
        {"env": {"LEVEL": "INFO", "A": "1"}, "labels": {"made.by": "tests"}, "entrypoint": ["/wait", "serve"], "ipc": "",
         "command": ["--of", "image"], "shm_size": "", "ulimits": {}, "volumes": [], "restart": "always"},
    ),
}  # fmt: skip


@pytest.fixture
def name(repository: str, engine: Any) -> Iterator[str]:
    """Yield a container's name; it and its volumes are removed afterwards."""
    value = repository.partition("/")[0]
    yield value
    for row in engine.containers(all=True, filters={"name": value}):
        engine.remove_container(row["Id"], force=True, v=True)
    for row in engine.volumes(filters={"name": value})["Volumes"] or ():
        engine.remove_volume(row["Name"])


def push_and_build_spec(images: Images, name: str, case: str) -> dict[str, Any]:
    image, options = CASES[case]
    ref, entry = images.push_and_lock(config={**IMAGE, **image})
    images.pull(ref, entry)
    options = {
        key: [_fill_placeholders(item, name) for item in value] if key in ("ports", "volumes") else value
        for key, value in options.items()
    }
    spec = ContainerSpec(name, f"{ref}@{entry['digest']}", gpus="", image_ids=locked_ids(entry)).to_json()
    return {**spec, **options}


def _fill_placeholders(text: str, name: str) -> str:
    return text.replace("PORT", str(free_port())).replace("NAMED", name)


@pytest.mark.parametrize("case", CASES)
def test_new_container_has_no_drift(images: Images, case: str, name: str) -> None:
    args = Container.Args(push_and_build_spec(images, name, case))
    first = Container().run(args, images.context)
    assert first.changed and first.data["running"]
    again = Container().run(args, images.context)
    assert (again.changed, again.data["drift"], again.data["differs"]) == (False, [], False)


def test_removed_options_are_drift(images: Images, name: str) -> None:
    spec = push_and_build_spec(images, name, "other labels")
    spec |= {"env": {"MORE": "1", "LEVEL": "DEBUG"}, "entrypoint": ["/wait", "other"]}
    Container().run(Container.Args(spec), images.context)
    plain = {**spec, "env": {}, "labels": {}, "entrypoint": None}
    result = Container().run(Container.Args(plain), images.check_context())
    assert {item.field for item in result.diff} >= {"env", "labels", "entrypoint"}


@pytest.mark.parametrize(
    "wanted", [{"gpus": "all"}, {"gpus": "2"}, {"gpus": "device=1,0"}, {"ulimits": {"stack": "1:-1", "memlock": "-1"}}]
)
def test_created_container_has_no_differences(images: Images, wanted: dict[str, Any], engine: Any, name: str) -> None:
    """It is not started: that would require the NVIDIA runtime, or more privileges than a test has."""
    spec = ContainerSpec.from_json({**push_and_build_spec(images, name, "no options"), **wanted})
    engine.create_container_from_config(container_options.build_create_body(spec), name)
    client = images.context.docker()
    attrs = containers.inspect(client, name)
    assert attrs is not None
    assert container_options.differences(spec, attrs, containers.image_of(client, attrs)) == []


def test_container_without_its_image_is_compared_with_the_recipe(images: Images, name: str) -> None:
    spec = ContainerSpec.from_json(push_and_build_spec(images, name, "environment of the image"))
    Container().run(Container.Args(spec.to_json()), images.context)
    attrs = containers.inspect(images.context.docker(), name)
    assert attrs is not None
    assert container_options.differences(spec, attrs, {}) == []
    other = ContainerSpec.from_json({**spec.to_json(), "env": {"LEVEL": "DEBUG"}})
    assert [difference.field for difference in container_options.differences(other, attrs, {})] == ["env"]
