"""`host.clean` on a simulated Spark: lists first, is refused during a run, spares the server, and leaves nothing else."""

import json
from pathlib import Path

import pytest

from sparkwright.host.runs import lock
from tests.e2e.conftest import SandboxProject

RECIPE = "recipes/qwen3.5-35b.yml"
CLEAN = ("host.clean", "--host", "sandbox")


def list_paths(home: Path) -> list[str]:
    return sorted(str(path.relative_to(home)) for path in home.rglob("*"))


def test_all_options_together_remove_everything_that_a_deploy_created(project: SandboxProject) -> None:
    project.docker()
    home = project.sandbox / "home"
    (home / "notes").write_text("mine")
    before = list_paths(home)
    project.deployed()
    waiting = home / "models/qwen35-35b-hf/.cache/sparkwright"
    waiting.mkdir(parents=True)
    (waiting / "part").write_text("left by a download")

    listed = project.run(*CLEAN, "--check", "--json")
    items = {(row["kind"], row["name"]): row for row in json.loads(listed.out)["items"]}
    assert listed.code == 2 and json.loads(listed.out)["freed_bytes"] is None
    assert items["container", "qwen35"]["kept"] == "--server removes it"
    assert items["image", "vllm/vllm-openai:v0.32.0"]["kept"] == "used by qwen35"
    assert items["folder", str(home / ".local/state/sparkwright")]["kept"] == ""
    assert project.containers() == ["qwen35 running"]

    unconfirmed = project.run(*CLEAN, "--server", "--models", "--images")  # standard input is not a terminal
    assert (unconfirmed.code, (project.state.path / "verified.json").exists()) == (2, True), unconfirmed.out
    assert "sandbox: nothing was removed." in unconfirmed.err

    cleaned = project.run(*CLEAN, "--server", "--models", "--images", "--yes")
    assert cleaned.code == 0, cleaned.out + cleaned.err
    assert list_paths(home) == before
    for arguments in (("--check",), ("--yes",)):
        again = project.run(*CLEAN, *arguments)
        assert (again.code, again.out) == (0, "sandbox: nothing to remove.\n"), again.out + again.err
    assert project.containers() == []
    assert project.docker().api.images() == []


def test_by_default_the_server_keeps_running_with_its_key_and_model(
    project: SandboxProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_KEY", "a-key-of-this-test-only")
    project.edit(RECIPE, "(?m)^publish: loopback.*", "server_key: {env: SPARK_KEY}")
    project.deployed()
    before = project.container()["Id"]
    home = project.sandbox / "home"
    model, manifests = list_paths(home / "models"), [*project.state.path.glob("model-*.json")]
    result = project.run(*CLEAN, "--models", "--images", "--yes", "--json")
    assert result.code == 0, result.out + result.err
    container = project.container()
    assert (container["Id"], container["State"]["Running"]) == (before, True)
    assert list_paths(home / "models") == model
    compiled = home / ".local/share/sparkwright/compile-caches"
    files = [path for path in (home / ".local").rglob("*") if path.is_file() and not path.is_relative_to(compiled)]
    leftovers = [path for path in files if path not in manifests]
    assert files != leftovers
    assert [str(path) for path in leftovers] == [
        mount["Source"] for mount in container["Mounts"] if mount["Source"].endswith(".yaml")
    ]
    kept_by_name = {row["name"]: row["kept"] for row in json.loads(result.out)["items"]}
    assert kept_by_name[str(leftovers[0])] == "mounted by qwen35"
    assert kept_by_name[str(home / "models/qwen35-35b-hf")] == "used by qwen35"
    assert [kept_by_name[str(key)] for key in compiled.iterdir()] == ["used by qwen35"]
    assert sorted(path.name for path in compiled.glob("*/*")) == ["frozen", "live"]


def test_the_previous_server_is_removed_but_not_during_a_run(project: SandboxProject) -> None:
    project.deployed()
    api = project.docker().api
    config = project.container()["Config"]
    api.create_container(config["Image"], name="qwen35-previous", command=["--model", "x"], labels=config["Labels"])
    for name in ("qwen35-interim", "someone-elses"):  # created by hand, without labels
        api.create_container(config["Image"], name=name, command=["--model", "x"])
    with lock.acquire(project.state, lock.LockOwner("deploy", "alice@project", "run-a", 1, 1.0), host="sandbox"):
        refused = project.run(*CLEAN, "--yes")
        assert (refused.code, "deploy by alice@project" in refused.err) == (5, True), refused.out + refused.err
    others = ["qwen35-interim created", "someone-elses created"]
    assert project.containers() == sorted(["qwen35 running", "qwen35-previous created", *others])
    assert (project.state.path / "verified.json").exists()
    assert project.run(*CLEAN, "--yes").code == 0
    assert project.containers() == sorted(["qwen35 running", *others])
    assert not (project.state.path / "verified.json").exists()
    assert project.deploy().code in (0, 4)


def test_a_model_that_was_kept_is_listed_and_removed_later(project: SandboxProject) -> None:
    project.deployed()
    home = project.sandbox / "home"
    model = str(home / "models/qwen35-35b-hf")
    first = project.run(*CLEAN, "--server", "--yes", "--json")
    kept = {row["kind"]: row for row in json.loads(first.out)["items"] if row["kept"]}
    assert (kept["model"]["kept"], kept["manifest"]["kept"]) == ("--models removes it", f"lists {model}")
    leftovers = [str(path) for path in (home / ".local").rglob("*") if path.is_file()]
    assert leftovers == [kept["manifest"]["name"]]

    second = project.run(*CLEAN, "--models", "--yes", "--json")
    items = {(row["kind"], row["name"]): row["kept"] for row in json.loads(second.out)["items"]}
    assert items["model", model] == "", second.out
    assert list_paths(home / "models") == list_paths(home / ".local") == []
