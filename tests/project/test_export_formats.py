"""`recipe.export`: exports for other tools are pinned, hold no key, and can be imported again."""

import dataclasses
import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.errors import Refused
from sparkwright.project import export_formats, starter
from sparkwright.protocol.container import DOCKER_OPTIONS
from tests import commands
from tests.project.importing.forms import import_data, import_recipe
from tests.project.recipes import load_text

DIGEST, COMMIT = "sha256:" + "c" * 64, "d" * 40
RECIPE = """
image: vllm/vllm-openai:v0.32.0
model: {id: acme/Tiny, dir: ~/models/tiny, mount: /models/tiny}
server_key: {env: SPARK_KEY}
container: {name: tiny, ports: ["8001:8000"], shm_size: 16gb, env: {A: "it's $5"}, ulimits: {memlock: "-1"}, gpus: "device=0"}
vllm: {served-model-name: tiny, default-chat-template-kwargs: {enable_thinking: false}, kv-cache-dtype: fp8, max-num-seqs: 4}
"""
RENDERERS = {
    "sparkrun": export_formats.render_sparkrun,
    "compose": export_formats.render_compose,
    "docker-run": export_formats.render_docker_run,
}


def build_export(folder: Path, text: str = RECIPE) -> export_formats.Export:
    locked = {"image": {"digest": DIGEST}, "model": {"commit": COMMIT}}
    return export_formats.build_export(load_text(folder, text, "tiny"), locked)


@pytest.fixture
def exported(tmp_path: Path) -> export_formats.Export:
    return build_export(tmp_path)


def render_compose(exported: export_formats.Export, **container: object) -> dict[str, Any]:
    """Return the compose file, with changed fields of the container."""
    spec = dataclasses.replace(exported.spec, **container)  # type: ignore[arg-type]
    data: dict[str, Any] = yaml.safe_load(export_formats.render_compose(dataclasses.replace(exported, spec=spec)))
    return data


@pytest.mark.parametrize("form", RENDERERS)
def test_export_is_pinned_without_key_and_can_be_imported(form: str, exported: export_formats.Export) -> None:
    text = RENDERERS[form](exported)
    assert f"vllm/vllm-openai:v0.32.0@{DIGEST}" in text and "SPARK_KEY" not in text and "sparkwright" not in text
    assert any("server_key" in note for note in exported.notes)
    answers = {} if form == "sparkrun" else {"model": "acme/Tiny"}
    imported = import_recipe(text.replace('"$HOME"', "~"), name="tiny", **answers)
    actual, expected = yaml.safe_load(imported.text), yaml.safe_load(RECIPE)
    assert actual["vllm"] == expected["vllm"]
    assert actual["container"]["ports"] == ["8001:8000"] and imported.image_digest == DIGEST
    assert actual["container"]["env"] == {"A": "it's $5"}
    assert actual["model"] == {**expected["model"], **({"revision": COMMIT} if form == "sparkrun" else {})}


def test_docker_command_is_quoted_for_the_shell(exported: export_formats.Export) -> None:
    script = export_formats.render_docker_run(exported).replace("docker run", "printf '%s\\n'", 1)
    command, env = ["sh", "-c", script], {"HOME": "/home/me"}
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20, env=env)
    words = result.stdout.splitlines()
    assert {"/home/me/models/tiny:/models/tiny:ro", "A=it's $5", '{"enable_thinking":false}'} <= set(words)


#: for each option of a container another value than that of the recipe
OTHER_VALUES: dict[str, object] = {
    "gpus": "all", "ipc": "private", "shm_size": "8gb", "ports": ("9000:8000",), "volumes": ("/m:/m:ro", "/a:/b"), "env": {"B": "1"},
    "ulimits": {"nofile": "9"}, "labels": {"a": "b"}, "network": "name=lab,alias=m", "networks": ("name=lab,alias=m", "other"),
    "hostname": "h", "extra_hosts": ("a:1.2.3.4",), "dns": ("1.1.1.1",), "user": "1000", "group_add": ("44",), "privileged": True,
    "cap_add": ("SYS_PTRACE",), "cap_drop": ("ALL",), "security_opt": ("no-new-privileges",), "devices": ("/dev/x",), "pid": "host",
    "init": True, "working_dir": "/w", "stop_signal": "SIGINT", "healthcheck": {"test": "true", "retries": "3"}, "tmpfs": ("/tmp",),
    "sysctls": {"net.core.somaxconn": "1024"}, "memory": "9gb", "memory_swap": "9gb", "cpus": 2.0, "cpuset_cpus": "0-3",
    "oom_score_adj": 9, "log_driver": "local", "log_options": {"max-size": "9m"},
}  # fmt: skip
#: values that are easily confused with an unset option, or written only in part
TRICKY_VALUES: list[tuple[str, object]] = [
    ("init", False),
    ("ports", ("127.0.0.1:8001:8000",)),
    ("ports", ("8001:8000", "9001:9000")),
]


CASES = [
    (option, value, form)
    for option, value in [*((option, OTHER_VALUES[option]) for option in DOCKER_OPTIONS), *TRICKY_VALUES]
    for form in RENDERERS
    if (option, form) != ("env", "sparkrun")  # sparkrun gets the variables of the recipe, not of the container
]


@pytest.mark.parametrize(("option", "value", "form"), CASES)
def test_every_option_is_written_or_noted(
    option: str, value: object, form: str, exported: export_formats.Export
) -> None:
    plain = dataclasses.replace(exported, notes=[])
    changed = dataclasses.replace(exported.spec, **{option: value})  # type: ignore[arg-type]
    export = dataclasses.replace(exported, spec=changed, notes=[])
    is_written = RENDERERS[form](export) != RENDERERS[form](plain)
    assert is_written or export.notes != plain.notes or option in export.notes[-1], f"{option} is missing"


def test_sparkrun_cannot_set_an_entrypoint(tmp_path: Path) -> None:
    export = build_export(tmp_path, RECIPE.replace("name: tiny,", "name: tiny, entrypoint: [/run.sh],"))
    export_formats.render_sparkrun(export)
    assert export.notes[-1].endswith("for these container options: entrypoint, gpus, shm_size, ulimits")


def test_compose_number_of_gpus(exported: export_formats.Export) -> None:
    service = render_compose(exported, gpus="2", init=False)["services"]["tiny"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    assert service["init"] is False and "privileged" not in service


def test_compose_networks_health_check_and_log_options(exported: export_formats.Export) -> None:
    container: dict[str, object] = {
        "networks": ("name=lab,alias=m",),
        "healthcheck": {"test": "curl -f $URL", "retries": "3"},
    }
    document = render_compose(exported, **container, log_driver="local", log_options={"max-size": "9m"})
    service = document["services"]["tiny"]
    assert service["networks"] == {"default": None, "lab": {"aliases": ["m"]}} and "network_mode" not in service
    assert document["networks"] == {"lab": {"external": True}}
    assert service["healthcheck"] == {"test": "curl -f $$URL", "retries": 3}
    assert service["logging"] == {"driver": "local", "options": {"max-size": "9m"}}
    disabled = render_compose(exported, network="lab", healthcheck={"test": "NONE"})
    assert disabled["services"]["tiny"]["healthcheck"] == {"disable": True}


@pytest.mark.parametrize(("first", "further"), [("bridge", "lab"), ("lab", "bridge")])
def test_default_bridge_becomes_the_default_network(exported: export_formats.Export, first: str, further: str) -> None:
    document = render_compose(exported, network=first, networks=(further,))
    assert document["services"]["tiny"]["networks"] == {"default": None, "lab": None}
    assert document["networks"] == {"lab": {"external": True}}


def test_only_sparkrun_supports_a_cluster(tmp_path: Path) -> None:
    text = RECIPE.replace(', ports: ["8001:8000"]', "").replace("server_key: {env: SPARK_KEY}", "parallel: {tensor: 2}")
    export = export_formats.build_export(load_text(tmp_path, text, "pair"), {"image": None, "model": None})
    data = yaml.safe_load(export_formats.render_sparkrun(export))
    assert data["min_nodes"] == 2 and "--tensor-parallel-size {tensor_parallel}" in data["command"]
    assert import_data(export_formats.render_sparkrun(export))["parallel"] == {"tensor": 2}
    with pytest.raises(Refused, match="its own container"):
        export_formats.render_compose(export)


def test_command_refuses_an_unpinned_export(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    export = ("recipe.export", "qwen3.5-35b")
    refused = commands.run(*export, cwd=tmp_path)
    assert refused.returncode == 5 and "no entry for the image and model" in refused.stderr and not refused.stdout
    result = commands.run(*export, "--format", "docker-run", "--unpinned", "--json", cwd=tmp_path)
    assert shlex.split(json.loads(result.stdout)["text"])[:2] == ["docker", "run"]
    assert commands.run(*export, "--format", "podman", cwd=tmp_path).returncode == 5
    text = commands.run(*export, "--format", "compose", "--unpinned", cwd=tmp_path).stdout
    assert yaml.safe_load(text)["services"]["qwen35"]["image"] == "vllm/vllm-openai:v0.32.0"
