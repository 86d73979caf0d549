"""A host switches to another recipe: its server is replaced, and restored under its own name if that fails."""

import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import SandboxProject, sandbox_project

FIRST, OTHER = "qwen3.5-35b", "qwen3-1.7b"
CONTAINER = "qwen35"  # of FIRST; the container of OTHER has the name of its recipe
KILL_RUNNER_TASK = "{name: Die, command: {argv: [sh, -c, 'kill -9 $PPID']}}"


class RecipeChange:
    """A project whose host changes its recipe."""

    def __init__(self, project: SandboxProject) -> None:
        self.project = project
        self.books = {path: path.read_text() for path in (project.root / "playbooks").rglob("*.yml")}

    def recipe(self, name: str) -> None:
        host = self.project.root / "hosts/sandbox.yml"
        host.write_text(re.sub(r"(?m)^recipe: .*", f"recipe: {name}", host.read_text()))

    def broken_at(self, task: str, inserted: str) -> None:
        """Insert a task before another one in the playbooks, until `whole`."""
        self.project.before(task, inserted)

    def whole(self) -> None:
        for path, text in self.books.items():
            path.write_text(text)

    def server(self) -> tuple[str, str, str]:
        """Return Id, name and restart policy of the running container. It must be the only one."""
        api = self.project.docker().api
        (row,) = api.containers(all=True)
        container = api.inspect_container(row["Id"])
        assert container["State"]["Running"]
        return container["Id"], container["Name"].lstrip("/"), container["HostConfig"]["RestartPolicy"]["Name"]

    @property
    def run_folder(self) -> Path:
        return self.project.sandbox / "home/.local/share/sparkwright/run"

    def scripts(self) -> set[str]:
        """Return the names of the containers that have a docker run script."""
        return {path.stem for path in self.run_folder.glob("*.sh")}

    def serves(self) -> str:
        """Return the name of the served model."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.project.port}/v1/models", timeout=30) as answer:
            return str(json.load(answer)["data"][0]["id"])


@pytest.fixture
def changing(monkeypatch: pytest.MonkeyPatch) -> Iterator[RecipeChange]:
    monkeypatch.setenv("SPARKWRIGHT_SANDBOX_SPEED", "instant")
    with sandbox_project() as project:
        project.deployed()
        yield RecipeChange(project)


def test_a_deploy_replaces_the_previous_recipes_server_and_a_rollback_restores_it(changing: RecipeChange) -> None:
    project, before = changing.project, changing.server()
    (changing.run_folder / "mine.sh").write_text("#!/bin/sh\n# of the user\n")
    changing.recipe(OTHER)
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
    rows = project.run("history", "--host", "sandbox", "--json").events()
    assert [row["what"] for row in rows[:3]] == ["rolled back", "verified", "verified"]


@pytest.mark.parametrize("task", ["Drain requests", "Start the server", "Measure throughput"])
def test_if_the_new_server_fails_the_previous_one_serves_under_its_own_name(changing: RecipeChange, task: str) -> None:
    project, before = changing.project, changing.server()
    changing.recipe(OTHER)
    changing.broken_at(task, "{name: Break, fail: {msg: broken for a test}}")
    failed = project.deploy()
    assert failed.code == 1
    assert failed.recap["msg"].startswith("broken for a test"), failed.recap
    assert changing.server() == before
    assert changing.serves() == FIRST
    changing.whole()
    changing.recipe(FIRST)
    assert project.run("plan", "--host", "sandbox").code == 0, "nothing is left of the attempt"


def test_playbooks_of_an_earlier_version_restore_it_too(changing: RecipeChange) -> None:
    """A project may have its own playbooks from a version that started the restored server under the failed server's name."""
    project, before = changing.project, changing.server()
    for path, text in changing.books.items():
        path.write_text(text.replace("{{ restored.name }}", "{{ to_serve.spec.name }}"))
    changing.recipe(OTHER)
    changing.broken_at("Start the server", "{name: Break, fail: {msg: broken for a test}}")
    assert project.deploy().code == 1
    assert changing.server() == before
    assert changing.serves() == FIRST


@pytest.mark.parametrize("task", ["Wait for its processes to exit", "Start the server", "Measure throughput"])
@pytest.mark.parametrize("then", ["deploy it", "deploy the previous one", "rollback"])
def test_a_run_that_was_killed_is_finished_or_undone(changing: RecipeChange, task: str, then: str) -> None:
    project, before = changing.project, changing.server()
    changing.recipe(OTHER)
    changing.broken_at(task, KILL_RUNNER_TASK)
    assert project.deploy().code == 1
    changing.whole()
    if then == "deploy the previous one":
        changing.recipe(FIRST)
    result = project.run("rollback", "--host", "sandbox", "--json") if then == "rollback" else project.deploy()
    assert result.code == 0, result.out[-2000:]
    assert changing.server()[1:] == (OTHER if then == "deploy it" else CONTAINER, "unless-stopped")
    if then == "rollback":
        assert changing.server() == before, "the same container"
    assert changing.serves() == (OTHER if then == "deploy it" else FIRST)
