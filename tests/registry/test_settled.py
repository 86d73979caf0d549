"""A container has no drift right after it was created, for all options of a recipe and an image, with a real engine."""

from collections.abc import Iterator
from typing import Any

import pytest

from sparkwright.host.containers import container_options, containers
from sparkwright.modules.server.container import Container
from sparkwright.protocol.container import ContainerSpec, locked_ids
from tests.modules.context import RecordingContext
from tests.registry.server import Registry
from tests.registry.test_docker_image import lock_image, pull_image
from tests.remote.sshd import free_port

pytestmark = pytest.mark.docker

IMAGE = {
    "Env": ["PATH=/bin", "LEVEL=INFO", "EMPTY=", "PAIR=a=b"],
    "Labels": {"made.by": "tests", "sparkwright.run": "of another life"},
    "Entrypoint": ["/wait", "serve"],
    "Cmd": ["--of", "image"],
    "User": "1000:1000",
    "WorkingDir": "/work",
    "Volumes": {"/data": {}},
    "ExposedPorts": {"8000/tcp": {}},
    "Healthcheck": {"Test": ["CMD", "/wait"], "Interval": 60_000_000_000},
    "StopSignal": "SIGKILL",
}
#: what the image is, beside the usual, and what the recipe asks for
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "an image that brings nothing": (dict.fromkeys(IMAGE) | {"Cmd": ["/wait"]}, {}),
    "a bare image and a command": (dict.fromkeys(IMAGE), {"command": ["/wait", "--port", "8000"]}),
    "the image's environment": ({}, {"env": {"LEVEL": "INFO", "EMPTY": "", "PAIR": "a=b"}}),
    "another environment": ({}, {"env": {"LEVEL": "", "MORE": "ü \n'\"$(id)", "PATH": "/usr/bin"}}),
    "the image's label": ({}, {"labels": {"made.by": "tests"}}),
    "other labels": ({}, {"labels": {"made.by": "me", "com.example.a": "b", "empty": ""}}),
    "the image's entrypoint": ({}, {"entrypoint": ["/wait", "serve"], "command": ["--a"]}),
    "the image's entrypoint and no command": ({}, {"entrypoint": ["/wait", "serve"]}),
    "one word of entrypoint": ({"Entrypoint": ["/wait"]}, {"entrypoint": ["/wait"], "command": ["--a"]}),
    "another entrypoint": ({}, {"entrypoint": ["/wait", "-m", "vllm"], "command": ["--a", "b"]}),
    "an empty entrypoint": ({}, {"entrypoint": [], "command": ["--a"]}),
    "no entrypoint at all": ({}, {"entrypoint": [""], "command": ["/wait", "--a"]}),
    "the image's command": ({}, {"command": ["--of", "image"]}),
    "ipc of the engine": ({}, {"ipc": ""}),
    "ipc private": ({}, {"ipc": "private"}),
    "ipc shareable": ({}, {"ipc": "shareable"}),
    "ipc none": ({}, {"ipc": "none"}),
    "ipc and memory of the host": ({}, {"ipc": "host", "shm_size": "16m"}),
    "memory in megabytes": ({}, {"ipc": "private", "shm_size": "1.5MiB"}),
    "memory in bytes": ({}, {"ipc": "private", "shm_size": "16777216"}),
    "no memory": ({}, {"ipc": "private", "shm_size": "0"}),
    "ports": ({}, {"ports": ["127.0.0.1:PORT:8000", "127.0.0.1:PORT:8000/tcp", "127.0.0.1:PORT:9000/udp", "[::1]:PORT:7000"]}),
    "volumes": ({}, {"volumes": ["/usr/share/:/b/:ro", "/usr/lib:/a", "/etc/hostname:/c:rw", "NAMED:/d"]}),
    "a volume over the image's": ({}, {"volumes": ["/usr/share:/data:ro"]}),
    "limits": ({}, {"ulimits": {"nofile": "512:1024", "core": "0"}}),
    "all at once": (
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


def push_and_build_spec(
    registry: Registry, context: RecordingContext, repository: str, name: str, case: str
) -> dict[str, Any]:
    image, options = CASES[case]
    registry.push(repository, "v1", config={**IMAGE, **image})
    ref = f"{registry.address}/{repository}:v1"
    entry = lock_image(context, ref)
    pull_image(context, ref, entry)
    options = {
        key: [_fill_placeholders(item, name) for item in value] if key in ("ports", "volumes") else value
        for key, value in options.items()
    }
    spec = ContainerSpec(name, f"{ref}@{entry['digest']}", gpus="", image_ids=locked_ids(entry)).to_json()
    return {**spec, **options}


def _fill_placeholders(text: str, name: str) -> str:
    return text.replace("PORT", str(free_port())).replace("NAMED", name)


@pytest.mark.parametrize("case", CASES)
def test_a_second_look_finds_nothing_to_do(
    case: str, registry: Registry, engine: Any, repository: str, name: str, context: RecordingContext
) -> None:
    args = Container.Args(push_and_build_spec(registry, context, repository, name, case))
    first = Container().run(args, context)
    assert first.changed and first.data["running"]
    again = Container().run(args, context)
    assert (again.changed, again.data["drift"], again.data["differs"]) == (False, [], False)


def test_what_is_taken_from_a_recipe_again_is_a_difference(
    registry: Registry, engine: Any, repository: str, name: str, context: RecordingContext
) -> None:
    spec = push_and_build_spec(registry, context, repository, name, "other labels")
    spec |= {"env": {"MORE": "1", "LEVEL": "DEBUG"}, "entrypoint": ["/wait", "other"]}
    Container().run(Container.Args(spec), context)
    plain = {**spec, "env": {}, "labels": {}, "entrypoint": None}
    looked = RecordingContext(context.machine.home, architecture="x86_64", check=True)
    result = Container().run(Container.Args(plain), looked)
    assert {item.field for item in result.diff} >= {"env", "labels", "entrypoint"}


@pytest.mark.parametrize(
    "wanted", [{"gpus": "all"}, {"gpus": "2"}, {"gpus": "device=1,0"}, {"ulimits": {"stack": "1:-1", "memlock": "-1"}}]
)
def test_what_this_machine_cannot_start_is_said_back_as_it_was_asked_for(
    wanted: dict[str, Any], registry: Registry, engine: Any, repository: str, name: str, context: RecordingContext
) -> None:
    """Created only: starting would need the NVIDIA runtime, or more rights than a test may have."""
    spec = ContainerSpec.from_json({**push_and_build_spec(registry, context, repository, name, "nothing"), **wanted})
    engine.create_container_from_config(container_options.build_create_body(spec), name)
    client = context.docker()
    attrs = containers.inspect(client, name)
    assert attrs is not None
    assert container_options.differences(spec, attrs, containers.image_of(client, attrs)) == []


def test_a_container_whose_image_is_gone_is_judged_by_what_is_asked_for(
    registry: Registry, engine: Any, repository: str, name: str, context: RecordingContext
) -> None:
    spec = ContainerSpec.from_json(push_and_build_spec(registry, context, repository, name, "the image's environment"))
    Container().run(Container.Args(spec.to_json()), context)
    attrs = containers.inspect(context.docker(), name)
    assert attrs is not None
    assert container_options.differences(spec, attrs, {}) == []
    other = ContainerSpec.from_json({**spec.to_json(), "env": {"LEVEL": "DEBUG"}})
    assert [difference.field for difference in container_options.differences(other, attrs, {})] == ["env"]
