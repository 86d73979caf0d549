"""Containers of other programs are never stopped, renamed or removed, whatever their name."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.errors import Refused
from sparkwright.host.state import StateFolder
from sparkwright.project.recipe import recipe
from tests.e2e.conftest import TOP, CommandResult, SandboxProject

RECIPE = "recipes/qwen3.5-35b.yml"
DEPLOY = ("deploy", "--host", "sandbox", "--json")


def create_manually(project: SandboxProject, name: str, labels: dict[str, str] | None = None) -> str:
    """Create a container as a person does, and return its Id."""
    api, command = project.docker().api, ["--model", "x", "--port", "9"]
    image = api.images()[0]["RepoTags"][0]
    return str(api.create_container(image, name=name, command=command, labels=labels)["Id"])


def container_state(project: SandboxProject, container_id: str) -> tuple[Any, ...]:
    """Return everything of a container that a stop, a rename or an update would change."""
    container = project.container(container_id)
    policy = container["HostConfig"]["RestartPolicy"]["Name"]
    return container["Name"], container["State"]["Status"], policy, container["RestartCount"]


def all_container_states(project: SandboxProject) -> dict[str, tuple[Any, ...]]:
    ids = [row["Id"] for row in project.docker().api.containers(all=True)]
    return {container_id: container_state(project, container_id) for container_id in ids}


def change_recipe(project: SandboxProject) -> None:
    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 17")


def refused_message(result: CommandResult) -> str:
    assert result.code == 5, result.out[-2000:] + result.err
    return str(result.recap["msg"])


@pytest.mark.parametrize("taken", ["qwen35-previous", "qwen35-replacement", "qwen35"])
def test_a_manual_container_with_a_needed_name_is_named_and_not_changed(project: SandboxProject, taken: str) -> None:
    if taken != "qwen35":
        project.deployed()
    else:
        assert project.run("deploy", "--host", "sandbox", "--tags", "image,model").code == 0
    theirs = create_manually(project, taken, {"sparkwright.role": "server", "sparkwright.owner": "of-an-image"})
    before = all_container_states(project)
    change_recipe(project)
    for command in (DEPLOY, ("plan", "--host", "sandbox", "--json")):
        result = project.run(*command)
        assert f"container {taken} (" in refused_message(result)
        assert f"`docker rename {taken} {taken}-kept`" in json.dumps(result.recap)
    assert all_container_states(project) == before
    project.docker().api.rename(theirs, "moved-away")
    assert project.deploy().proved
    assert container_state(project, theirs)[0] == "/moved-away"


@pytest.mark.parametrize("command", ["deploy", "rollback", "restart"])
def test_a_renamed_server_is_recognized(project: SandboxProject, command: str) -> None:
    project.deployed()
    (row,) = project.docker().api.containers()
    project.docker().api.rename(row["Id"], "mine")
    before = container_state(project, row["Id"])
    if command == "deploy":
        checked = project.run("health.check", "--host", "sandbox")
        assert (checked.code, "differs from the last good state: name" in checked.out) == (2, True), checked.out
    result = project.run(command, "--host", "sandbox", "--json")
    message = "container mine is the server qwen35, renamed by hand. On the host: `docker rename mine"
    assert refused_message(result).startswith(message)
    assert container_state(project, row["Id"]) == before
    project.docker().api.rename(row["Id"], "qwen35")
    second_run = project.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0), second_run.out[-2000:]


def test_a_server_of_an_earlier_release_without_labels_is_replaced(project: SandboxProject) -> None:
    project.deployed()
    state, api, container = project.state, project.docker().api, project.container()
    api.remove_container("qwen35", force=True)
    config = {**container["Config"], "Labels": {}, "Hostname": "", "HostConfig": container["HostConfig"]}
    old = api.create_container_from_config(config, "qwen35")["Id"]
    api.start(old)
    state.write("verified", {**(state.read("verified") or {}), "container_id": old})
    same = project.deploy()
    assert same.task("Compare running container with recipe")["diff"] == []
    assert (same.code, same.recap["changed"]) == (0, 0), same.out[-2000:]
    change_recipe(project)
    assert project.deploy().proved
    (row,) = api.containers(all=True)
    assert row["Id"] != old and "sparkwright.owner" in row["Labels"]


def test_host_clean_spares_containers_with_other_sparkwright_labels(project: SandboxProject) -> None:
    project.deployed()
    theirs = create_manually(project, "theirs", {"sparkwright.mine": "1", "sparkwright.engineer": "me"})
    cleaned = project.run("host.clean", "--host", "sandbox", "--server", "--yes")
    assert cleaned.code == 0, cleaned.out + cleaned.err
    assert [row["Id"] for row in project.docker().api.containers(all=True)] == [theirs]


def test_the_server_of_a_recipe_named_like_a_previous_container_is_not_removed(project: SandboxProject) -> None:
    """Issue 30: a deploy of `small` removed the running server of a recipe called `small-previous`."""
    project.deployed()
    state, name = project.state, "qwen35-previous"
    other = create_manually(project, name)  # as an earlier release left it: verified, without labels
    verified = state.read("verified") or {}
    state.for_server(name)
    spec = {**verified["spec"], "name": name}
    StateFolder(state.path, name).write("verified", {**verified, "container_id": other, "spec": spec})
    before = container_state(project, other)
    change_recipe(project)
    message = refused_message(project.deploy())
    assert message.startswith(f"container {name} is the server of another recipe of this host")
    assert container_state(project, other) == before
    assert project.container()["State"]["Running"]


@pytest.mark.parametrize("name", ["small-previous", "small-interim", "small-replacement", "gateway", "gateway-check"])
def test_a_recipe_may_not_use_a_reserved_container_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "recipes"
    folder.mkdir()
    text = (TOP / RECIPE).read_text().replace("name: qwen35", f"name: {name}")
    (folder / "one.yml").write_text(text)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if f"name: {name}" in line)
    with pytest.raises(Refused) as refused:
        recipe.load(tmp_path, "one")
    assert f"recipes/one.yml:{line}" in str(refused.value) and "Use another." in str(refused.value)
