"""Differences between a container and its spec: the cases of container_options.yml, and what every option needs."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.errors import Failed
from sparkwright.host.containers import container_options, inspection
from sparkwright.host.containers.option_table import OPTIONS
from sparkwright.project.recipe.models import Container
from sparkwright.protocol import expressions
from sparkwright.protocol.container import DOCKER_OPTIONS, ContainerSpec
from sparkwright.trust import container_option_rules
from tests.host.containers.test_option_reader import make_container
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


def deep_merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = deep_merge(base[key], value) if isinstance(value, dict) and key in base else value
    return merged


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_differences_between_a_container_and_its_spec(case: dict[str, Any]) -> None:
    spec = ContainerSpec.from_json({**SPEC, **case.get("spec", {})})
    container = deep_merge(CONTAINER, case.get("container", {}))
    changes = container_options.differences(spec, container, deep_merge(IMAGE, case.get("image", {})))
    assert [[change.field, change.before, change.after] for change in changes] == case["diff"]


@pytest.mark.parametrize(
    ("text", "size"), [("64gb", 2**36), ("512m", 2**29), ("1024", 1024), ("1.5g", 3 * 2**29), ("8G", 2**33)]
)
def test_sizes_are_parsed_as_in_docker(text: str, size: int) -> None:
    assert container_option_rules.parse_size(text) == size


def test_every_option_of_a_recipes_container_is_compared_and_in_the_script() -> None:
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
    other_options = {"--ipc": "host", "--shm-size": "64gb", "-p": "8000:8000", "-v": "/models:/m"}
    assert quoted == {"--gpus": '"device=0,1"', **other_options}


def test_a_spec_without_newer_options_has_only_the_fields_of_older_releases() -> None:
    assert ContainerSpec.from_json(SPEC).to_json().keys() == {
        "name", "image", "restart", "gpus", "ipc", "shm_size", "ports", "volumes", "env", "ulimits", "labels", "entrypoint",
        "command", "image_ids",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("removed", "fields"),
    [
        ({"shm_size": "32g"}, ["shm-size"]),
        ({"log_driver": "local", "log_options": {"max-size": "1m"}}, ["log-driver", "log-options"]),
        ({"cap_add": ("SYS_NICE",)}, []),
        ({}, []),
    ],
)
def test_an_option_that_was_removed_from_the_recipe_is_a_difference(removed: dict[str, Any], fields: list[str]) -> None:
    """The container shows only a value; the spec that it was created from shows that the value was requested."""
    container: dict[str, Any] = {"Id": "a" * 64, "HostConfig": {}, "Config": {}}
    spec, made_from = ContainerSpec("a", "b"), ContainerSpec("a", "b", **removed)
    assert [item.field for item in container_options.removed_options(spec, made_from, container, {})] == fields
    assert container_options.removed_options(made_from, made_from, container, {}) == []


@pytest.mark.parametrize("name", [name for name, option in DOCKER_OPTIONS.items() if option.key])
def test_an_option_with_a_malformed_value_in_dockers_answer_is_refused(name: str) -> None:
    option = DOCKER_OPTIONS[name]
    answer = make_container()
    assert inspection.validate_container(answer)
    answer[option.section][option.key] = object()
    with pytest.raises(Failed, match=option.key):
        inspection.validate_container(answer)
