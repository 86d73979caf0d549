"""Proposals of recipes for a host, and the texts that are written for it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparkwright.app.setup import dialog, proposal
from sparkwright.app.setup.dialog import SurveyedHost
from sparkwright.app.setup.proposal import NewHost
from sparkwright.errors import Refused
from sparkwright.project import recipe, shipped_files, starter
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.units import GIB

RECIPES = [recipe.load(shipped_files.shipped_folder(), name) for name in recipe.names(shipped_files.shipped_folder())]


def make_survey(memory_gib: float = 119.7, models: Any = (), servers: Any = ()) -> dict[str, Any]:
    return {"memory_bytes": int(memory_gib * GIB), "models": list(models), "servers": list(servers)}


def find_choice(name: str, survey: dict[str, Any] | None) -> proposal.Choice:
    return next(choice for choice in proposal.propose_recipes(RECIPES, survey) if choice.name == name)


def model_on_disk(
    model: str, size_gib: float, folder: str = "/home/ops/models/there", place: str = "folder"
) -> dict[str, Any]:
    return {"id": model, "dir": folder, "place": place, "size_bytes": int(size_gib * GIB)}


def test_nothing_fits_before_the_models_size_is_known() -> None:
    """The size comes from the disk, or else from the catalogue of shipped recipes."""
    choices = {choice.name: choice for choice in proposal.propose_recipes(RECIPES, make_survey())}
    assert choices["glm-4.7-flash"].verdict == "unknown"  # its size is unknown
    assert choices["qwen3.5-35b"].verdict == "fits" and choices["qwen3.5-35b"].why.startswith("32.6 GiB of files")
    own = [replace(recipe, name=f"my-{recipe.name}") for recipe in RECIPES]
    assert {choice.verdict for choice in proposal.propose_recipes(own, make_survey())} == {"unknown"}
    assert proposal.propose_recipes(RECIPES, make_survey())[0].name == proposal.USUAL_RECIPE


def test_an_engine_that_leaves_no_reserve_is_too_large_and_comes_last() -> None:
    rows = proposal.propose_recipes(RECIPES, make_survey(24))
    assert (rows[-1].verdict, find_choice("qwen3.5-35b", make_survey(24)).why) == (
        "too large",
        "32.6 GiB of files, the engine takes 20.4 of 24.0 GiB",
    )
    small = find_choice("llama-3.1-8b", make_survey(28)).fit
    assert (small.verdict, small.largest) == ("too large", "gpu-memory-utilization 0.58")
    assert small.why == (
        "it takes 28.4 of 28.0 GiB (16.8 for the engine, 1.6 on the host's side, 6.0 for the host itself, 4.0 reserve)"
    )
    assert find_choice("qwen3.5-35b", make_survey(24)).fit.largest == ""  # its weights alone are larger
    verdicts = [row.verdict for row in rows]
    assert set(verdicts[verdicts.index("too large") :]) == {"too large"}


def test_a_recipe_is_judged_by_the_budget_of_a_deploy() -> None:
    """Each row has its source. The memory in use on a host that serves nothing is the host's own."""
    alone = {
        **make_survey(119.7),
        "memory_available_bytes": int(110 * GIB),
        "ollama": {"reachable": True, "models": []},
    }
    budget = find_choice("qwen3.5-35b", alone).fit.budget
    assert budget is not None
    rows = {row.name: (round(row.size_bytes / GIB, 1), row.source) for row in budget.rows}
    assert rows["the host itself"] == (9.7, "in use now, with nothing served")
    assert rows["weights"] == (32.6, "the model's files") and rows["host's side"][0] == 7.0
    assert not budget.fits and find_choice("qwen3.5-35b", make_survey()).verdict == "fits"
    busy = {**alone, "servers": [{"model_dir": "/x", "models": ["y"]}]}
    assert find_choice("qwen3.5-35b", busy).verdict == "fits"  # the server's memory is freed


def test_a_model_on_the_disk_comes_first_and_its_size_decides() -> None:
    model = "zai-org/GLM-4.7-Flash"
    first = proposal.propose_recipes(RECIPES, make_survey(models=[model_on_disk(model, 58)]))[0]
    assert (first.name, first.verdict, first.actual_folder) == ("glm-4.7-flash", "fits", "/home/ops/models/there")
    assert find_choice("glm-4.7-flash", make_survey(models=[model_on_disk(model, 110)])).verdict == "too large"


def test_a_folder_that_ends_like_the_recipes_own_is_another() -> None:
    model = model_on_disk("openai/gpt-oss-120b", 60, "/models/gpt-oss-120b")
    assert find_choice("gpt-oss-120b", make_survey(models=[model])).actual_folder == "/models/gpt-oss-120b"


def test_a_model_in_its_own_folder_or_in_the_hubs_cache_moves_nothing() -> None:
    model = "zai-org/GLM-4.7-Flash"
    own = model_on_disk(model, 58, "/home/ops/models/glm-4.7-flash", "own")
    cached = model_on_disk(model, 58, "/home/ops/.cache/huggingface/hub/models--x/snapshots/1", "hub cache")
    assert [find_choice("glm-4.7-flash", make_survey(models=[item])).actual_folder for item in (own, cached)] == [
        "",
        "",
    ]
    assert find_choice("glm-4.7-flash", make_survey(models=[cached, own])).local_copy == own


@pytest.mark.parametrize("name", recipe.names(shipped_files.shipped_folder()))
def test_a_recipe_takes_another_folder_and_nothing_else_changes(name: str, tmp_path: Path) -> None:
    before = (shipped_files.shipped_folder() / f"recipes/{name}.yml").read_text()
    after = yaml.safe_load(proposal.set_model_dir(before, "/data/my models: x", "spark1"))
    assert after["model"].pop("dir") == "/data/my models: x"
    expected = yaml.safe_load(before)
    del expected["model"]["dir"]
    assert after == expected


@pytest.mark.parametrize(
    ("typed", "host"),
    [
        ("spark-1a2b.local", ("spark-1a2b", "spark-1a2b.local", None, None)),
        ("ops@10.0.0.7:2222", ("10.0.0.7", "10.0.0.7", "ops", 2222)),
        ("ops@fe80::1", ("fe80-1", "fe80::1", "ops", None)),
    ],
)
def test_what_is_typed_for_a_host(typed: str, host: tuple[object, ...]) -> None:
    value = NewHost.parse_address(typed)
    assert (value.name, value.address, value.user, value.port) == host


@pytest.mark.parametrize("typed", ["", "a b", "-oProxyCommand=x", "x:70000", "a@b@c", "[::1]:22"])
def test_what_is_no_address_is_refused(typed: str) -> None:
    with pytest.raises(Refused, match="is not an address"):
        NewHost.parse_address(typed)


@pytest.mark.parametrize("name", ["all", "groups", "a,b", "x*", "../x", ""])
def test_a_name_that_means_something_else_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="can't be a"):
        proposal.refuse_name(name)


def test_the_written_files_are_an_inventory(tmp_path: Path) -> None:
    host = NewHost("no", "no", "yes", 2222, ("lab", "on"), "qwen3.5-35b")
    groups = proposal.add_groups(
        (shipped_files.shipped_folder() / "hosts/groups.yml").read_text(), {"lab": {}}, host.groups
    )
    strange = "Docker: 'x'\nrecipe: evil"
    starter.write_starter(
        tmp_path, {"hosts/no.yml": proposal.render_host_file(host, [strange], "init"), "hosts/groups.yml": groups}
    )
    read = Inventory.load(tmp_path).hosts["no"]
    assert (read.address, read.user, read.port, read.groups) == ("no", "yes", 2222, ("lab", "on"))
    assert read.recipe == "qwen3.5-35b"


def test_a_start_that_is_cut_off_leaves_no_file_and_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, write, count = tmp_path / "a/b", Path.write_bytes, iter(range(1000))

    def interrupted(path: Path, data: bytes) -> int:
        if next(count) == 20:
            raise KeyboardInterrupt
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        starter.write_starter(folder)
    assert list(tmp_path.iterdir()) == []


def test_what_serves_already_comes_with_the_command_that_adopts_it(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"engine": "vllm", "models": ["m"], "port": 8000, "verified": False}
    servers = [{**row, "name": "my-llm"}, {**row, "name": "ours", "verified": True}]
    dialog.print_notes(SurveyedHost(NewHost("spark1", "spark1.local"), make_survey(servers=servers), None))
    message = " ".join(capsys.readouterr().out.split())
    assert "recipe.import --from-host spark1 --container my-llm" in message and "--container ours" not in message


def test_a_recipe_for_a_cluster_is_refused_by_init_and_hosts_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, name, message = NewHost("spark9", "10.0.0.9"), "deepseek-v4-flash", "deepseek-v4-flash runs on a cluster"
    with pytest.raises(Refused, match=message) as refused:
        dialog.create_from_options(tmp_path / "new", host, recipe_name=name, offline=True)
    assert "hosts/groups.yml" in refused.value.fix and list(tmp_path.iterdir()) == []
    starter.write_starter(tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    with pytest.raises(Refused, match=message):
        dialog.add_host(host, recipe_name=name, interactive=False, offline=True, json=False)
    assert not Path("hosts/spark9.yml").exists()


def test_a_recipe_in_a_subfolder_is_taken_by_init_and_hosts_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, project = "examples/qwen3.5-35b-frozen", tmp_path / "project"
    assert dialog.create_from_options(project, NewHost("spark1", "10.0.0.8"), recipe_name=name, offline=True) == 0
    monkeypatch.chdir(project)
    dialog.add_host(NewHost("spark2", "10.0.0.9"), recipe_name=name, interactive=False, offline=True, json=False)
    assert {host.name: host.recipe for host in Inventory.load(project).hosts.values() if host.recipe == name} == {
        "spark1": name,
        "spark2": name,
    }


def test_every_recipe_that_fits_can_be_chosen_by_number_or_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [choice.name for choice in proposal.propose_recipes(RECIPES, make_survey())]
    for answer in ("12", names[11]):
        answers = iter([answer])
        monkeypatch.setattr("builtins.input", lambda question, answers=answers: next(answers))
        choice = dialog.choose_recipe(RECIPES, make_survey(), 4, recipe_name="", interactive=True)
        assert choice is not None and choice.name == names[11]
        assert f"12 {names[11]}" in " ".join(capsys.readouterr().out.split())
