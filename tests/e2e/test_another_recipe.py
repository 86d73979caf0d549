"""A host switches to another recipe: its server is replaced, and restored under its own name if that fails."""

import json
from pathlib import Path

import pytest

from tests.e2e.conftest import CommandResult, SandboxProject

FIRST, OTHER = "qwen3.5-35b", "qwen3-1.7b"
CONTAINER = "qwen35"  # of FIRST; the container of OTHER is named like its recipe
BREAK_TASK = "{name: Break, fail: {msg: broken for a test}}"
KILL_RUNNER_TASK = "{name: Die, command: {argv: [sh, -c, 'kill -9 $PPID']}}"


class RecipeChange:
    """A project with a host that changes its recipe."""

    def __init__(self, project: SandboxProject) -> None:
        self.project = project

    def set_recipe(self, name: str) -> None:
        self.project.edit("hosts/sandbox.yml", r"(?m)^recipe: .*", f"recipe: {name}")

    def deploy_broken(self, task: str, inserted: str) -> CommandResult:
        """Deploy OTHER with a task inserted before another."""
        with self.project.restored_files():
            self.project.before(task, inserted)
            self.set_recipe(OTHER)
            return self.project.deploy()

    def server(self) -> tuple[str, str, str]:
        """Return Id, name and restart policy of the only container."""
        (row,) = self.project.docker().api.containers(all=True)
        container = self.project.container(row["Id"])
        assert container["State"]["Running"]
        return container["Id"], container["Name"].lstrip("/"), container["HostConfig"]["RestartPolicy"]["Name"]

    @property
    def run_folder(self) -> Path:
        return self.project.sandbox / "home/.local/share/sparkwright/run"

    def scripts(self) -> set[str]:
        """Return the names of the containers that have a docker run script."""
        return {path.stem for path in self.run_folder.glob("*.sh")}

    def served_model(self) -> str:
        """Return the name of the served model."""
        return str(json.loads(self.project.get("/v1/models"))["data"][0]["id"])


@pytest.fixture
def changing(project: SandboxProject) -> RecipeChange:
    project.deployed()
    return RecipeChange(project)


def test_a_deploy_replaces_the_previous_recipes_server_and_a_rollback_restores_it(changing: RecipeChange) -> None:
    project, before = changing.project, changing.server()
    (changing.run_folder / "mine.sh").write_text("#!/bin/sh\n# of the user\n")
    changing.set_recipe(OTHER)
    planned = project.run("plan", "--host", "sandbox", "--json")
    assert planned.code == 2
    compared = planned.task("Compare running container with recipe")
    assert compared["msg"] == f"replaces {CONTAINER}, the server of another recipe"
    stopped = planned.task("Stop previous server, keep it for rollback")["diff"]
    assert [(item["before"], item["after"]) for item in stopped] == [
        (f"{CONTAINER} (running)", f"{OTHER}-previous (stopped)")
    ]
    scripts = planned.task("Write an equivalent docker run script")["diff"]
    assert {"field": f"script of {CONTAINER}", "before": "file", "after": "absent"}.items() <= scripts[-1].items()
    assert changing.server() == before, "a plan changes nothing"
    assert changing.scripts() == {CONTAINER, "mine"}
    assert "name" in project.run("verify", "--host", "sandbox").out
    refused = project.run("restart", "--host", "sandbox")
    assert (refused.code, f"replaces {CONTAINER}" in refused.out) == (5, True), refused.out
    assert project.deploy().proved
    assert changing.server()[1:] == (OTHER, "unless-stopped")
    assert changing.scripts() == {OTHER, "mine"}, "the script of the replaced server is removed with it"
    assert project.run("plan", "--host", "sandbox").code == 0
    result = project.run("rollback", "--host", "sandbox", "--json")
    assert result.proved, result.out[-2000:]
    assert changing.server()[1:] == (CONTAINER, "unless-stopped")
    assert changing.scripts() == {CONTAINER, "mine"}
    assert [row["what"] for row in project.history()[:3]] == ["rolled back", "verified", "verified"]


@pytest.mark.parametrize("task", ["Drain requests", "Start the server", "Measure throughput"])
def test_a_failed_deploy_restores_the_previous_recipes_server_under_its_name(changing: RecipeChange, task: str) -> None:
    before = changing.server()
    failed = changing.deploy_broken(task, BREAK_TASK)
    assert failed.code == 1 and failed.recap["msg"].startswith("broken for a test"), failed.recap
    assert (changing.server(), changing.served_model()) == (before, FIRST)
    assert changing.project.run("plan", "--host", "sandbox").code == 0, "nothing is left of the attempt"


def test_playbooks_of_an_earlier_version_restore_the_previous_server_too(changing: RecipeChange) -> None:
    """A project may have ejected playbooks that start the restored server under the name of the failed one."""
    before = changing.server()
    for path in (changing.project.root / "playbooks").rglob("*.yml"):
        path.write_text(path.read_text().replace("{{ restored.name }}", "{{ to_serve.spec.name }}"))
    assert changing.deploy_broken("Start the server", BREAK_TASK).code == 1
    assert (changing.server(), changing.served_model()) == (before, FIRST)


@pytest.mark.parametrize("task", ["Wait for its processes to exit", "Start the server", "Measure throughput"])
@pytest.mark.parametrize("then", ["deploy the other recipe", "deploy the first recipe", "rollback"])
def test_a_killed_run_is_finished_by_a_deploy_or_undone_by_a_rollback(
    changing: RecipeChange, task: str, then: str
) -> None:
    project, before = changing.project, changing.server()
    assert changing.deploy_broken(task, KILL_RUNNER_TASK).code == 1
    expected = FIRST if then == "deploy the first recipe" else OTHER
    changing.set_recipe(expected)
    if then == "rollback":
        expected = FIRST
        result = project.run("rollback", "--host", "sandbox", "--json")
        assert changing.server() == before, "the same container"
    else:
        result = project.deploy()
    assert result.code == 0, result.out[-2000:]
    assert changing.server()[1:] == (CONTAINER if expected == FIRST else OTHER, "unless-stopped")
    assert changing.served_model() == expected
