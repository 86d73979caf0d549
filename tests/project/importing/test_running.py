"""`recipe.import --from-host`: a running container becomes a recipe, and a plan with it has no changes."""

from typing import Any

import yaml

from tests.e2e.conftest import SandboxProject
from tests.e2e.conftest import project as desk  # noqa: F401 - a fixture
from tests.project.importing.forms import format_rows, import_running

ADOPT = ("recipe.import", "--from-host", "sandbox", "--name", "adopted", "--answer", "model=Qwen/Qwen3.5-35B-A3B-FP8")
#: as the module returns them
SETTINGS: dict[str, Any] = {
    "name": "My_LLM",
    "image": "vllm/vllm-openai:v0.32.0@sha256:" + "b" * 64,
    "entrypoint": None,
    "program": ["vllm", "serve"],
    "command": ["acme/Tiny", "--port", "8001", "--api-key", "***", "--chat-template", "mine.jinja"],
    "env": {"HF_TOKEN": "***", "A": "1"},
    "ports": ["0.0.0.0:9000:8001"],
    "volumes": ["/srv/cache:/root/.cache/huggingface"],
    "network": "",
    "options": {"gpus": "all", "restart": "always", "privileged": True},
    "running": True,
}


def test_plan_with_the_recipe_of_a_running_server_has_no_changes(desk: SandboxProject) -> None:  # noqa: F811
    desk.deployed()
    before = desk.serving()
    result = desk.run(*ADOPT, "--container", "qwen35")
    assert result.code == 0, result.err
    assert "changed nothing on sandbox" in result.out
    desk.edit("hosts/sandbox.yml", r"recipe: .*", "recipe: adopted")
    plan = desk.run("plan", "--host", "sandbox", "--json")
    compared = plan.task("Compare running container with recipe")
    assert compared["status"] == "ok" and not compared["diff"], compared
    assert desk.serving() == before


def test_unknown_container_is_refused_with_the_running_ones(desk: SandboxProject) -> None:  # noqa: F811
    desk.deployed()
    result = desk.run(*ADOPT, "--container", "qwen36")
    assert result.code == 5 and "no container qwen36. Running: qwen35." in result.err
    assert desk.run(*ADOPT).code == 5


def test_settings_are_kept_and_secrets_left_out() -> None:
    imported = import_running(SETTINGS)
    data = yaml.safe_load(imported.text)
    assert imported.name == "my_llm" and data["container"]["name"] == "My_LLM"
    assert data["container"]["ports"] == ["0.0.0.0:9000:8001"] and data["vllm"]["port"] == 8001
    assert data["container"]["privileged"] is True and data["container"]["restart"] == "always"
    assert data["container"]["env"] == {"A": "1"} and data["container"]["volumes"] == SETTINGS["volumes"]
    assert "entrypoint" not in data["container"]
    assert data["vllm"]["chat-template"] == "mine.jinja"
    assert "server_key" in data and "***" not in imported.text
    assert imported.image_digest == "sha256:" + "b" * 64


def test_entrypoint_is_the_image_program_and_that_of_the_command() -> None:
    program = ["/opt/nvidia/nvidia_entrypoint.sh"]
    command = ["vllm", "serve", "--model", "acme/Tiny"]
    data = yaml.safe_load(import_running({**SETTINGS, "program": program, "command": command}).text)
    assert data["container"]["entrypoint"] == [*program, "vllm", "serve"]
    assert data["model"]["id"] == "acme/Tiny"


def test_unsupported_options_are_dropped_and_grant_no_more() -> None:
    """A recipe without `ipc` shares the host's namespace, which a container that joined another container's did not."""
    options = {**SETTINGS["options"], "ipc": "container:a", "pid": "container:a", "dns": ["x", "10.0.0.1"]}
    imported = import_running({**SETTINGS, "options": options})
    data = yaml.safe_load(imported.text)["container"]
    assert (data["ipc"], data["dns"]) == ("", ["10.0.0.1"]) and "pid" not in data
    dropped = {row.subject for row in imported.report.rows if row.kind == "dropped"}
    assert {"ipc container:a", "pid container:a", "dns x"} <= dropped


def test_report_tells_how_to_copy_the_downloaded_files() -> None:
    folder = "~/models/tiny"
    command = f"mkdir -p {folder} && sudo cp -rlL /srv/cache/hub/models--acme--Tiny/snapshots/*/. {folder}/"
    assert command in format_rows(import_running(SETTINGS))
