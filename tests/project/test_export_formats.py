"""`recipe.export`: what another tool is given is pinned, holds no key, and comes back as the same recipe."""

import dataclasses
import json
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from sparkwright.project import export_formats, recipe, starter
from sparkwright.protocol.container import DOCKER_OPTIONS
from tests import commands
from tests.project.importing.forms import import_recipe

DIGEST, COMMIT = "sha256:" + "c" * 64, "d" * 40
RECIPE = """
image: vllm/vllm-openai:v0.32.0
model: {id: acme/Tiny, dir: ~/models/tiny, mount: /models/tiny}
server_key: {env: SPARK_KEY}
container: {name: tiny, ports: ["8001:8000"], shm_size: 16gb, env: {A: "it's $5"}, ulimits: {memlock: "-1"}, gpus: "device=0"}
vllm: {served-model-name: tiny, default-chat-template-kwargs: {enable_thinking: false}, kv-cache-dtype: fp8, max-num-seqs: 4}
"""
WRITERS = {
    "sparkrun": export_formats.render_sparkrun,
    "compose": export_formats.render_compose,
    "docker-run": export_formats.render_docker_run,
}


@pytest.fixture
def exported(tmp_path: Path) -> export_formats.Export:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/tiny.yml").write_text(RECIPE)
    return export_formats.build_export(
        recipe.load(tmp_path, "tiny"), {"image": {"digest": DIGEST}, "model": {"commit": COMMIT}}
    )


@pytest.mark.parametrize("form", WRITERS)
def test_it_is_pinned_holds_no_key_and_comes_back_as_the_same(form: str, exported: export_formats.Export) -> None:
    text = WRITERS[form](exported)
    assert f"vllm/vllm-openai:v0.32.0@{DIGEST}" in text and "SPARK_KEY" not in text and "sparkwright" not in text
    assert any("server_key" in note for note in exported.notes)
    back = import_recipe(
        text.replace('"$HOME"', "~"), name="tiny", **({} if form == "sparkrun" else {"model": "acme/Tiny"})
    )
    actual, expected = yaml.safe_load(back.text), yaml.safe_load(RECIPE)
    assert actual["vllm"] == expected["vllm"]
    assert actual["container"]["ports"] == ["8001:8000"] and back.image_digest == DIGEST
    assert actual["container"]["env"] == {"A": "it's $5"}
    assert actual["model"] == {**expected["model"], **({"revision": COMMIT} if form == "sparkrun" else {})}


def test_a_shell_reads_the_docker_line_as_it_is_meant(exported: export_formats.Export) -> None:
    line = export_formats.render_docker_run(exported).replace("docker run", "printf '%s\\n'", 1)
    result = subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, check=True, timeout=20, env={"HOME": "/home/me"}
    )
    words = result.stdout.splitlines()
    assert (
        "/home/me/models/tiny:/models/tiny:ro" in words
        and "A=it's $5" in words
        and '{"enable_thinking":false}' in words
    )


#: another value than the exported recipe's for each option of a container
OTHER_VALUES: dict[str, object] = {
    "gpus": "all",
    "ipc": "private",
    "shm_size": "8gb",
    "ports": ("9000:8000",),
    "volumes": ("/m:/m:ro", "/a:/b"),
    "env": {"B": "1"},
    "ulimits": {"nofile": "9"},
    "labels": {"a": "b"},
    "network": "name=lab,alias=m",
    "networks": ("name=lab,alias=m", "other"),
    "hostname": "h",
    "extra_hosts": ("a:1.2.3.4",),
    "dns": ("1.1.1.1",),
    "user": "1000",
    "group_add": ("44",),
    "privileged": True,
    "cap_add": ("SYS_PTRACE",),
    "cap_drop": ("ALL",),
    "security_opt": ("no-new-privileges",),
    "devices": ("/dev/x",),
    "pid": "host",
    "init": True,
    "working_dir": "/w",
    "stop_signal": "SIGINT",
    "healthcheck": {"test": "true", "retries": "3"},
    "tmpfs": ("/tmp",),
    "sysctls": {"net.core.somaxconn": "1024"},
    "memory": "9gb",
    "memory_swap": "9gb",
    "cpus": 2.0,
    "cpuset_cpus": "0-3",
    "oom_score_adj": 9,
    "log_driver": "local",
    "log_options": {"max-size": "9m"},
}


#: values that are easily taken for an unset option, or written in part
TRICKY_VALUES: list[tuple[str, object]] = [
    ("init", False),
    ("ports", ("127.0.0.1:8001:8000",)),
    ("ports", ("8001:8000", "9001:9000")),
]


#: sparkrun gets the variables of the recipe, not of the container
@pytest.mark.parametrize(
    ("option", "value", "form"),
    [
        (option, value, form)
        for option, value in [*((option, OTHER_VALUES[option]) for option in DOCKER_OPTIONS), *TRICKY_VALUES]
        for form in WRITERS
        if (option, form) != ("env", "sparkrun")
    ],
)
def test_no_option_of_a_container_is_left_out_silently(
    option: str, value: object, form: str, exported: export_formats.Export
) -> None:
    render = WRITERS[form]
    plain = dataclasses.replace(exported, notes=[])
    changed = dataclasses.replace(exported.spec, **{option: value})
    export = dataclasses.replace(exported, spec=changed, notes=[])
    is_written = render(export) != render(plain)
    assert is_written or export.notes != plain.notes or option in export.notes[-1], (
        f"{option} is neither written nor noted"
    )


def test_sparkrun_gets_no_entrypoint_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/tiny.yml").write_text(RECIPE.replace("name: tiny,", "name: tiny, entrypoint: [/run.sh],"))
    export = export_formats.build_export(recipe.load(tmp_path, "tiny"), {})
    export_formats.render_sparkrun(export)
    assert export.notes[-1].endswith(": entrypoint, gpus, shm_size, ulimits of the container")


def test_compose_gets_a_number_of_gpus(exported: export_formats.Export) -> None:
    export = dataclasses.replace(exported, spec=dataclasses.replace(exported.spec, gpus="2", init=False))
    service = yaml.safe_load(export_formats.render_compose(export))["services"]["tiny"]
    assert service["deploy"]["resources"]["reservations"]["devices"][0]["count"] == 2
    assert service["init"] is False and "privileged" not in service


def test_compose_gets_networks_health_check_and_log_options(exported: export_formats.Export) -> None:
    spec = dataclasses.replace(
        exported.spec,
        networks=("name=lab,alias=m",),
        healthcheck={"test": "curl -f $URL", "retries": "3"},
        log_driver="local",
        log_options={"max-size": "9m"},
    )
    document = yaml.safe_load(export_formats.render_compose(dataclasses.replace(exported, spec=spec)))
    service = document["services"]["tiny"]
    assert service["networks"] == {"default": None, "lab": {"aliases": ["m"]}} and "network_mode" not in service
    assert document["networks"] == {"lab": {"external": True}}
    assert service["healthcheck"] == {"test": "curl -f $$URL", "retries": 3}
    assert service["logging"] == {"driver": "local", "options": {"max-size": "9m"}}
    disabled = dataclasses.replace(
        exported, spec=dataclasses.replace(spec, healthcheck={"test": "NONE"}, network="lab")
    )
    document = yaml.safe_load(export_formats.render_compose(disabled))
    assert document["services"]["tiny"]["healthcheck"] == {"disable": True}


@pytest.mark.parametrize(("first", "further"), [("bridge", "lab"), ("lab", "bridge")])
def test_dockers_default_bridge_becomes_composes_default_network(
    exported: export_formats.Export, first: str, further: str
) -> None:
    spec = dataclasses.replace(exported.spec, network=first, networks=(further,))
    document = yaml.safe_load(export_formats.render_compose(dataclasses.replace(exported, spec=spec)))
    assert document["services"]["tiny"]["networks"] == {"default": None, "lab": None}
    assert document["networks"] == {"lab": {"external": True}}


def test_a_cluster_goes_to_sparkrun_with_its_number_of_hosts_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    text = RECIPE.replace(', ports: ["8001:8000"]', "").replace("server_key: {env: SPARK_KEY}", "parallel: {tensor: 2}")
    (tmp_path / "recipes/pair.yml").write_text(text)
    export = export_formats.build_export(recipe.load(tmp_path, "pair"), {"image": None, "model": None})
    data = yaml.safe_load(export_formats.render_sparkrun(export))
    assert data["min_nodes"] == 2 and "--tensor-parallel-size {tensor_parallel}" in data["command"]
    assert yaml.safe_load(import_recipe(export_formats.render_sparkrun(export)).text)["parallel"] == {"tensor": 2}
    with pytest.raises(Exception, match="its own container"):
        export_formats.render_compose(export)


def test_the_command_refuses_what_is_not_pinned_unless_told(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    refused = commands.run("recipe.export", "qwen3.5-35b", cwd=tmp_path)
    assert refused.returncode == 5 and "no entry for the image and model" in refused.stderr and not refused.stdout
    result = commands.run(
        "recipe.export", "qwen3.5-35b", "--format", "docker-run", "--unpinned", "--json", cwd=tmp_path
    )
    assert shlex.split(json.loads(result.stdout)["text"])[:2] == ["docker", "run"]
    assert commands.run("recipe.export", "qwen3.5-35b", "--format", "podman", cwd=tmp_path).returncode == 5
    if shutil.which("docker"):
        text = commands.run("recipe.export", "qwen3.5-35b", "--format", "compose", "--unpinned", cwd=tmp_path).stdout
        assert yaml.safe_load(text)["services"]["qwen35"]["image"] == "vllm/vllm-openai:v0.32.0"
