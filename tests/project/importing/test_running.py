"""`recipe.import --from-host`: a container that serves becomes a recipe that a deploy finds fulfilled, and it goes on serving."""

import yaml

from sparkwright.project.importing import container, recipe_builder
from sparkwright.project.importing.foreign_recipe import ImportReport
from tests.e2e.conftest import SandboxProject
from tests.e2e.conftest import project as desk  # noqa: F401 - a fixture

ADOPT = ("recipe.import", "--from-host", "sandbox", "--name", "adopted", "--answer", "model=Qwen/Qwen3.5-35B-A3B-FP8")
#: as the module returns them
SETTINGS = {
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


def test_an_adopted_server_is_found_as_its_recipe_says_and_goes_on(desk: SandboxProject) -> None:  # noqa: F811
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


def test_a_container_that_is_not_there_is_named_with_those_that_are(desk: SandboxProject) -> None:  # noqa: F811
    desk.deployed()
    result = desk.run(*ADOPT, "--container", "qwen36")
    assert result.code == 5 and "no container qwen36. Running: qwen35." in result.err
    assert desk.run(*ADOPT).code == 5


def test_it_is_kept_as_it_runs_and_its_secrets_stay_on_the_host() -> None:
    report = ImportReport()
    value = recipe_builder.build_recipe(container.convert_running(SETTINGS, "spark1", report), "", report, "spark1")
    data = yaml.safe_load(value.text)
    assert value.name == "my_llm" and data["container"]["name"] == "My_LLM"
    assert data["container"]["ports"] == ["0.0.0.0:9000:8001"] and data["vllm"]["port"] == 8001
    assert data["container"]["privileged"] is True and data["container"]["restart"] == "always"
    assert data["container"]["env"] == {"A": "1"} and data["container"]["volumes"] == SETTINGS["volumes"]
    assert data["vllm"]["chat-template"] == "mine.jinja"
    assert "server_key" in data and "***" not in value.text
    assert value.image_digest == "sha256:" + "b" * 64


def test_a_program_that_its_command_names_is_kept_with_the_images_own_before_it() -> None:
    wrapped = {
        **SETTINGS,
        "program": ["/opt/nvidia/nvidia_entrypoint.sh"],
        "command": ["vllm", "serve", "--model", "acme/Tiny"],
    }
    report = ImportReport()
    data = yaml.safe_load(
        recipe_builder.build_recipe(container.convert_running(wrapped, "spark1", report), "", report, "spark1").text
    )
    assert data["container"]["entrypoint"] == ["/opt/nvidia/nvidia_entrypoint.sh", "vllm", "serve"]
    assert data["model"]["id"] == "acme/Tiny"
    report = ImportReport()
    defaults = yaml.safe_load(
        recipe_builder.build_recipe(container.convert_running(SETTINGS, "spark1", report), "", report, "spark1").text
    )
    assert "entrypoint" not in defaults["container"]


def test_what_a_recipe_does_not_support_is_dropped_and_never_widened() -> None:
    """Without `ipc`, a recipe shares the host's namespace: a container that joined another container's did not."""
    options = {**SETTINGS["options"], "ipc": "container:a", "pid": "container:a", "dns": ["x", "10.0.0.1"]}
    report = ImportReport()
    foreign = container.convert_running({**SETTINGS, "options": options}, "spark1", report)
    data = yaml.safe_load(recipe_builder.build_recipe(foreign, "", report, "spark1").text)["container"]
    assert (data["ipc"], data["dns"]) == ("", ["10.0.0.1"]) and "pid" not in data
    dropped = [row.what for row in report.rows if row.sort == "dropped"]
    assert {"ipc container:a", "pid container:a", "dns x"} <= {*dropped}


def test_it_says_how_the_files_that_it_downloaded_are_taken_over() -> None:
    report = ImportReport()
    recipe_builder.build_recipe(container.convert_running(SETTINGS, "spark1", report), "", report, "spark1")
    message = " ".join(f"{row.what} {row.why}" for row in report.rows)
    folder = "~/models/tiny"
    assert f"mkdir -p {folder} && sudo cp -rlL /srv/cache/hub/models--acme--Tiny/snapshots/*/. {folder}/" in message
