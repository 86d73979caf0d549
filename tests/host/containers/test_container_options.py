"""Differences between a container and its spec, case by case (container_options.yml)."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.errors import Failed
from sparkwright.host.containers import container_options, inspection
from sparkwright.host.containers.container_options import OPTIONS
from sparkwright.project.recipe.models import Container
from sparkwright.protocol import expressions
from sparkwright.protocol.container import DOCKER_OPTIONS, ContainerSpec
from sparkwright.trust import container_option_rules
from tests.project.docker_options import CASES as CASES_OF_OPTIONS

CASES = yaml.safe_load(Path(__file__).with_name("container_options.yml").read_text())

SPEC = {
    "name": "q",
    "image": "repo/vllm:tag@sha256:aaaa",
    "shm_size": "64gb",
    "ports": ["8000:8000"],
    "volumes": ["/models:/m"],
    "command": ["--model", "/m", "--max-num-seqs", "8"],
}
IMAGE = {
    "Id": "sha256:1d",
    "RepoDigests": ["repo/vllm@sha256:aaaa"],
    "Config": {"Env": ["PATH=/bin", "VLLM_VERSION=1"], "Entrypoint": ["vllm", "serve"], "Labels": {"made": "by"}},
}
CONTAINER = {
    "Config": {
        "Env": ["PATH=/bin", "VLLM_VERSION=1"],
        "Entrypoint": ["vllm", "serve"],
        "Cmd": ["--model", "/m", "--max-num-seqs", "8"],
        "Labels": {"made": "by"},
    },
    "HostConfig": {
        "IpcMode": "host",
        "ShmSize": 64 * 2**30,
        "PortBindings": {"8000/tcp": [{"HostIp": "", "HostPort": "8000"}]},
        "Binds": ["/models:/m"],
        "DeviceRequests": [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}],
        "RestartPolicy": {"Name": "unless-stopped"},
        "Ulimits": None,
    },
}


def deep_merge(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: deep_merge(base[key], value) if isinstance(value, dict) and key in base else value
        for key, value in more.items()
    }
    return {**base, **both}


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_case(case: dict[str, Any]) -> None:
    spec = ContainerSpec.from_json({**SPEC, **case.get("wanted", {})})
    changes = container_options.differences(
        spec, deep_merge(CONTAINER, case.get("found", {})), deep_merge(IMAGE, case.get("image", {}))
    )
    assert [[change.field, change.before, change.after] for change in changes] == case["diff"]


@pytest.mark.parametrize(
    ("text", "size"), [("64gb", 2**36), ("512m", 2**29), ("1024", 1024), ("1.5g", 3 * 2**29), ("8G", 2**33)]
)
def test_sizes_read_as_docker_reads_them(text: str, size: int) -> None:
    assert container_option_rules.parse_size(text) == size


def test_every_option_of_a_recipes_container_is_compared_created_and_in_the_script() -> None:
    """One more option of `docker run`: a field of ContainerSpec."""
    by_other_rules = {"name", "image", "restart", "entrypoint", "command", "image_ids", "server_key", "files", "caches"}
    fields = set(ContainerSpec.__dataclass_fields__)
    assert {option.field.replace("-", "_") for option in OPTIONS} == fields - by_other_rules
    assert set(Container.model_fields) - fields == {"stop_timeout_s", "compile_caches"}
    assert fields - set(Container.model_fields) == {"image", "command", "image_ids", "server_key", "files", "caches"}
    spec = ContainerSpec.from_json({**SPEC, **{option.name: option.value for option in reversed(CASES_OF_OPTIONS)}})
    host = {"docker_options": list(spec.docker_options()), "docker_networks": spec.further_networks()}
    names = {"container": {"restart": "no", "entrypoint": None, **spec.to_json()}, **host}
    script = (Path(__file__).parents[3] / "templates/docker-run.sh.j2").read_text()
    template_names = {"host": {"name": "h"}, "recipe": {"name": "r", "description": ""}, "home": "/"}
    words = shlex.split(str(expressions.render(script, {**names, **template_names})).replace("\\\n", " "), True)
    flags = [option.flag for option in DOCKER_OPTIONS.values()]
    assert [flag for flag in flags if not any(word.startswith(flag) for word in words)] == []
    assert words[words.index("connect") + 1 :] == ["NETWORK-a", "q", "docker", "start", "q"]
    quoted = dict(ContainerSpec.from_json({**SPEC, "gpus": "device=0,1"}).docker_options())
    assert quoted == {
        "--gpus": '"device=0,1"',
        "--ipc": "host",
        "--shm-size": "64gb",
        "-p": "8000:8000",
        "-v": "/models:/m",
    }


def test_a_spec_that_asks_for_nothing_new_reads_as_one_of_an_older_release() -> None:
    assert ContainerSpec.from_json(SPEC).to_json().keys() == {
        "name", "image", "restart", "gpus", "ipc", "shm_size", "ports", "volumes", "env", "ulimits", "labels", "entrypoint",
        "command", "image_ids",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ({"shm_size": "32g"}, ["shm-size"]),
        ({"log_driver": "local", "log_options": {"max-size": "1m"}}, ["log-driver", "log-options"]),
        ({"cap_add": ("SYS_NICE",)}, []),
        ({}, []),
    ],
)
def test_what_was_asked_for_and_is_left_to_the_engine_now_is_a_difference(
    asked: dict[str, Any], fields: list[str]
) -> None:
    """The engine's own value does not show that it was requested; the spec that the container was made from does."""
    container: dict[str, Any] = {"Id": "a" * 64, "HostConfig": {}, "Config": {}}
    spec, made_from = ContainerSpec("a", "b"), ContainerSpec("a", "b", **asked)
    assert [item.field for item in container_options.removed_options(spec, made_from, container, {})] == fields
    assert container_options.removed_options(made_from, made_from, container, {}) == []


@pytest.mark.parametrize("name", [name for name, option in DOCKER_OPTIONS.items() if option.key])
def test_what_the_engine_answers_of_an_option_is_held_to_its_shape(name: str) -> None:
    option = DOCKER_OPTIONS[name]
    state = {"Status": "running", "Running": True}
    answer: dict[str, Any] = {"Id": "a" * 64, "Name": "/q", "Image": "sha256:1d", "State": state}
    answer |= {"HostConfig": {"RestartPolicy": {"Name": "no"}}, "Config": {}}
    assert inspection.validate_container(answer)
    answer[option.section][option.key] = object()
    with pytest.raises(Failed, match=option.key):
        inspection.validate_container(answer)
