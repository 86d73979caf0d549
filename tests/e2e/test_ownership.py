"""Containers that are not sparkwright's are never stopped, renamed or removed, whatever they are called."""

import json
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.state import StateFolder
from tests.e2e.conftest import CommandResult, SandboxProject

RECIPE = "recipes/qwen3.5-35b.yml"
DEPLOY = ("deploy", "--host", "sandbox", "--json")


def create_manually(project: SandboxProject, name: str, labels: dict[str, str] | None = None) -> str:
    """A container that a person created and started under this name. Returns its id."""
    api = project.docker().api
    (image, *_) = (row["RepoTags"][0] for row in api.images())
    container_id: str = api.create_container(image, name=name, command=["--model", "x", "--port", "9"], labels=labels)[
        "Id"
    ]
    return container_id


def container_state(project: SandboxProject, container_id: str) -> tuple[Any, ...]:
    """All of a container that a stop, a rename or an update would change."""
    container = project.docker().api.inspect_container(container_id)
    return (
        container["Name"],
        container["State"]["Status"],
        container["HostConfig"]["RestartPolicy"]["Name"],
        container["RestartCount"],
    )


def change_recipe(project: SandboxProject) -> None:
    project.edit(RECIPE, r"max-num-seqs: \d+", "max-num-seqs: 17")


def refusal(result: CommandResult) -> str:
    assert result.code == 5, result.out[-2000:] + result.err
    return str(result.recap["msg"])


@pytest.mark.parametrize("taken", ["qwen35-previous", "qwen35-replacement", "qwen35"])
def test_a_container_of_a_person_that_has_a_name_we_need_is_named_and_nothing_is_touched(
    project: SandboxProject, taken: str
) -> None:
    if taken != "qwen35":
        project.deployed()
    else:
        assert project.run("deploy", "--host", "sandbox", "--tags", "image,model").code == 0
    theirs = create_manually(project, taken, {"sparkwright.role": "server", "sparkwright.owner": "of-an-image"})
    before = [
        (container["Id"], container_state(project, container["Id"]))
        for container in project.docker().api.containers(all=True)
    ]
    change_recipe(project)
    for command in (DEPLOY, ("plan", "--host", "sandbox", "--json")):
        result = project.run(*command)
        assert f"container {taken} (" in refusal(result)
        assert f"`docker rename {taken} {taken}-kept`" in json.dumps(result.recap)
    assert [
        (container["Id"], container_state(project, container["Id"]))
        for container in project.docker().api.containers(all=True)
    ] == before
    project.docker().api.rename(theirs, "moved-away")
    assert project.deploy().proved
    assert container_state(project, theirs)[0] == "/moved-away"


@pytest.mark.parametrize("command", ["deploy", "rollback", "restart"])
def test_a_server_that_a_person_renamed_is_found_and_told(project: SandboxProject, command: str) -> None:
    project.deployed()
    (row,) = project.docker().api.containers()
    project.docker().api.rename(row["Id"], "mine")
    before = container_state(project, row["Id"])
    if command == "deploy":
        checked = project.run("health.check", "--host", "sandbox")
        assert (checked.code, "differs from the last good state: name" in checked.out) == (2, True), checked.out
    result = project.run(command, "--host", "sandbox", "--json")
    assert refusal(result).startswith(
        "container mine is the server qwen35, renamed by hand. On the host: `docker rename mine"
    )
    assert container_state(project, row["Id"]) == before
    project.docker().api.rename(row["Id"], "qwen35")
    second_run = project.deploy()
    assert (second_run.code, second_run.recap["changed"]) == (0, 0), second_run.out[-2000:]


def test_a_server_of_an_earlier_release_has_no_labels_and_is_replaced_as_ever(project: SandboxProject) -> None:
    project.deployed()
    state, api = StateFolder.in_home(project.sandbox / "home"), project.docker().api
    container = api.inspect_container("qwen35")
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


def test_a_container_whose_label_only_begins_like_ours_is_left_alone(project: SandboxProject) -> None:
    """`host.clean` removed every container with a label `sparkwright.*`, whoever had given it."""
    project.deployed()
    theirs = create_manually(project, "theirs", {"sparkwright.mine": "1", "sparkwright.engineer": "me"})
    cleaned = project.run("host.clean", "--host", "sandbox", "--server", "--yes")
    assert cleaned.code == 0, cleaned.out + cleaned.err
    assert [row["Id"] for row in project.docker().api.containers(all=True)] == [theirs]


def test_the_verified_server_of_another_recipe_is_no_previous_one_of_this(project: SandboxProject) -> None:
    """Issue 30: a deploy of `small` removed the running server of a recipe called `small-previous`."""
    project.deployed()
    state, api = StateFolder.in_home(project.sandbox / "home"), project.docker().api
    other = create_manually(project, "qwen35-previous")  # as an earlier release left it: verified, without labels
    state.for_server("qwen35-previous")
    StateFolder(state.path, "qwen35-previous").write(
        "verified",
        {**(state.read("verified") or {}), "container_id": other, "spec": verified_spec(state, "qwen35-previous")},
    )
    before = container_state(project, other)
    change_recipe(project)
    assert refusal(project.deploy()).startswith(
        "container qwen35-previous is the server of another recipe of this host"
    )
    assert container_state(project, other) == before
    assert api.inspect_container("qwen35")["State"]["Running"]


def verified_spec(state: StateFolder, name: str) -> dict[str, Any]:
    return {**(state.read("verified") or {})["spec"], "name": name}


@pytest.mark.parametrize("name", ["small-previous", "small-interim", "small-replacement", "gateway", "gateway-check"])
def test_a_recipe_may_not_take_a_name_that_sparkwright_gives_itself(tmp_path: Path, name: str) -> None:
    from sparkwright.errors import Refused
    from sparkwright.project.recipe import recipe

    folder = tmp_path / "recipes"
    folder.mkdir()
    text = (Path(__file__).parents[2] / RECIPE).read_text().replace("name: qwen35", f"name: {name}")
    (folder / "one.yml").write_text(text)
    line = next(number for number, line in enumerate(text.splitlines(), 1) if f"name: {name}" in line)
    with pytest.raises(Refused) as refused:
        recipe.load(tmp_path, "one")
    assert f"recipes/one.yml:{line}" in str(refused.value) and "Use another." in str(refused.value)
