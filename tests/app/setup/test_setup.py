"""`init` and `hosts.add`: proposals of recipes for a host, and the files that are written."""

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
from tests import commands
from tests.on_a_terminal import open_screen

SHIPPED = shipped_files.shipped_folder()
RECIPES = [recipe.load(SHIPPED, name) for name in recipe.names(SHIPPED)]
GLM = "zai-org/GLM-4.7-Flash"


def make_survey(memory_gib: float = 119.7, models: Any = (), servers: Any = ()) -> dict[str, Any]:
    return {"memory_bytes": int(memory_gib * GIB), "models": list(models), "servers": list(servers)}


def find_choice(name: str, survey: dict[str, Any] | None) -> proposal.Proposal:
    return next(choice for choice in proposal.propose_recipes(RECIPES, survey) if choice.name == name)


def model_on_disk(
    model: str, size_gib: float, folder: str = "/home/ops/models/there", place: str = "folder"
) -> dict[str, Any]:
    return {"id": model, "dir": folder, "place": place, "size_bytes": int(size_gib * GIB)}


def test_fit_is_unknown_without_the_size_of_the_model() -> None:
    """The size comes from the disk, or else from the catalogue of shipped recipes."""
    choices = {choice.name: choice for choice in proposal.propose_recipes(RECIPES, make_survey())}
    assert choices["glm-4.7-flash"].verdict == "unknown"
    assert choices["qwen3.5-35b"].verdict == "fits" and choices["qwen3.5-35b"].reason.startswith("32.6 GiB of files")
    own = [replace(recipe, name=f"my-{recipe.name}") for recipe in RECIPES]
    assert {choice.verdict for choice in proposal.propose_recipes(own, make_survey())} == {"unknown"}
    assert proposal.propose_recipes(RECIPES, make_survey())[0].name == proposal.DEFAULT_RECIPE


def test_recipe_that_leaves_no_reserve_is_too_large_and_last() -> None:
    rows = proposal.propose_recipes(RECIPES, make_survey(24))
    large = find_choice("qwen3.5-35b", make_survey(24))
    assert (rows[-1].verdict, large.reason) == (
        "too large",
        "32.6 GiB of files, but the engine may use only 20.4 of 24.0 GiB",
    )
    assert large.fit.largest_fitting_flag == ""  # its weights alone are larger
    small = find_choice("llama-3.1-8b", make_survey(28)).fit
    assert (small.verdict, small.largest_fitting_flag) == ("too large", "gpu-memory-utilization 0.58")
    assert small.reason == (
        "it takes 28.4 of 28.0 GiB (16.8 for the engine, 1.6 on the host's side, 6.0 for the host itself, 4.0 reserve)"
    )
    verdicts = [row.verdict for row in rows]
    assert set(verdicts[verdicts.index("too large") :]) == {"too large"}


def test_budget_of_a_proposal_has_the_rows_and_sources_of_a_deploy() -> None:
    """Memory in use on a host without servers counts as the host's own."""
    idle = {
        **make_survey(119.7),
        "memory_available_bytes": int(110 * GIB),
        "ollama": {"reachable": True, "models": []},
    }
    budget = find_choice("qwen3.5-35b", idle).fit.budget
    assert budget is not None
    rows = {row.name: (round(row.size_bytes / GIB, 1), row.source) for row in budget.rows}
    assert rows["the host itself"] == (9.7, "in use now, with nothing served")
    assert rows["weights"] == (32.6, "the model's files") and rows["host's side"][0] == 7.0
    assert not budget.fits and find_choice("qwen3.5-35b", make_survey()).verdict == "fits"
    busy = {**idle, "servers": [{"model_dir": "/x", "models": ["y"]}]}
    assert find_choice("qwen3.5-35b", busy).verdict == "fits"  # the server's memory is freed


def test_recipe_of_a_model_on_the_disk_is_first_and_judged_by_its_size() -> None:
    first = proposal.propose_recipes(RECIPES, make_survey(models=[model_on_disk(GLM, 58)]))[0]
    assert (first.name, first.verdict, first.model_dir_override) == ("glm-4.7-flash", "fits", "/home/ops/models/there")
    assert find_choice("glm-4.7-flash", make_survey(models=[model_on_disk(GLM, 110)])).verdict == "too large"


def test_other_folder_with_the_same_name_as_the_recipes_is_used() -> None:
    model = model_on_disk("openai/gpt-oss-120b", 60, "/models/gpt-oss-120b")
    assert find_choice("gpt-oss-120b", make_survey(models=[model])).model_dir_override == "/models/gpt-oss-120b"


def test_model_in_the_recipes_folder_or_the_hub_cache_changes_no_folder() -> None:
    own = model_on_disk(GLM, 58, "/home/ops/models/glm-4.7-flash", "own")
    cached = model_on_disk(GLM, 58, "/home/ops/.cache/huggingface/hub/models--x/snapshots/1", "hub cache")
    for model in (own, cached):
        assert find_choice("glm-4.7-flash", make_survey(models=[model])).model_dir_override == ""
    assert find_choice("glm-4.7-flash", make_survey(models=[cached, own])).local_copy == own


@pytest.mark.parametrize("name", recipe.names(SHIPPED))
def test_setting_the_folder_of_a_recipe_changes_nothing_else(name: str) -> None:
    before = (SHIPPED / f"recipes/{name}.yml").read_text()
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
def test_typed_address_is_parsed(typed: str, host: tuple[object, ...]) -> None:
    value = NewHost.parse_address(typed)
    assert (value.name, value.address, value.user, value.port) == host


@pytest.mark.parametrize("typed", ["", "a b", "-oProxyCommand=x", "x:70000", "a@b@c", "[::1]:22"])
def test_invalid_address_is_refused(typed: str) -> None:
    with pytest.raises(Refused, match="is not an address"):
        NewHost.parse_address(typed)


@pytest.mark.parametrize("name", ["all", "groups", "a,b", "x*", "../x", ""])
def test_reserved_or_invalid_host_name_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="can't be a"):
        proposal.refuse_name(name)


def test_written_files_are_a_valid_inventory(tmp_path: Path) -> None:
    host = NewHost("no", "no", "yes", 2222, ("lab", "on"), "qwen3.5-35b")
    groups = proposal.add_groups((SHIPPED / "hosts/groups.yml").read_text(), {"lab": {}}, host.groups)
    host_file = proposal.render_host_file(host, ["Docker: 'x'\nrecipe: evil"], "init")
    starter.write_starter(tmp_path, {"hosts/no.yml": host_file, "hosts/groups.yml": groups})
    loaded = Inventory.load(tmp_path).hosts["no"]
    assert (loaded.address, loaded.user, loaded.port, loaded.groups) == ("no", "yes", 2222, ("lab", "on"))
    assert loaded.recipe == "qwen3.5-35b"


def test_interrupted_start_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, count = Path.write_bytes, iter(range(1000))

    def interrupt_at_20(path: Path, data: bytes) -> int:
        if next(count) == 20:
            raise KeyboardInterrupt
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", interrupt_at_20)
    with pytest.raises(KeyboardInterrupt):
        starter.write_starter(tmp_path / "a/b")
    assert list(tmp_path.iterdir()) == []


def test_unmanaged_server_is_shown_with_the_command_that_imports_it(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"engine": "vllm", "models": ["m"], "port": 8000, "verified": False}
    servers = [{**row, "name": "my-llm"}, {**row, "name": "ours", "verified": True}]
    dialog.print_notes(SurveyedHost(NewHost("spark1", "spark1.local"), make_survey(servers=servers), None))
    message = " ".join(capsys.readouterr().out.split())
    assert "recipe.import --from-host spark1 --container my-llm" in message and "--container ours" not in message


def add_host(host: NewHost, recipe_name: str) -> None:
    dialog.add_host(host, recipe_name=recipe_name, interactive=False, offline=True, json=False)


def test_init_and_hosts_add_refuse_a_recipe_for_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, name, message = NewHost("spark9", "10.0.0.9"), "deepseek-v4-flash", "deepseek-v4-flash runs on a cluster"
    with pytest.raises(Refused, match=message) as refused:
        dialog.create_from_options(tmp_path / "new", host, recipe_name=name, offline=True)
    assert "hosts/groups.yml" in refused.value.fix and list(tmp_path.iterdir()) == []
    starter.write_starter(tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    with pytest.raises(Refused, match=message):
        add_host(host, name)
    assert not Path("hosts/spark9.yml").exists()


def test_hosts_add_refuses_the_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starter.write_starter(tmp_path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Refused, match="the sandbox has no address"):
        add_host(NewHost("lab1", "sandbox"), "")
    assert not Path("hosts/lab1.yml").exists()


def test_init_and_hosts_add_accept_a_recipe_in_a_subfolder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, project = "examples/qwen3.5-35b-frozen", tmp_path / "project"
    assert dialog.create_from_options(project, NewHost("spark1", "10.0.0.8"), recipe_name=name, offline=True) == 0
    monkeypatch.chdir(project)
    add_host(NewHost("spark2", "10.0.0.9"), name)
    hosts = Inventory.load(project).hosts.values()
    assert {host.name for host in hosts if host.recipe == name} == {"spark1", "spark2"}


@pytest.mark.parametrize("by_name", [False, True], ids=["number", "name"])
def test_recipe_is_chosen_by_number_or_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], by_name: bool
) -> None:
    name = proposal.propose_recipes(RECIPES, make_survey())[11].name
    monkeypatch.setattr("builtins.input", lambda question: name if by_name else "12")
    choice = dialog.choose_recipe(RECIPES, make_survey(), 4, recipe_name="", interactive=True)
    assert choice is not None and choice.name == name
    assert f"12 {name}" in " ".join(capsys.readouterr().out.split())


def test_number_outside_the_list_is_not_an_address_and_ctrl_c_ends_the_line(tmp_path: Path) -> None:
    with open_screen("init", cwd=tmp_path, env={"HOME": str(tmp_path)}) as terminal:
        terminal.wait_for("[1]: ")
        terminal.type("99\n")
        assert "99 is not in the list." in terminal.wait_for("[1]: ")
        terminal.interrupt()
        assert terminal.wait_for_exit() == 4
        assert terminal.lines[-1] == "interrupted by Ctrl-C."


def test_hosts_add_writes_the_first_host_of_a_project(tmp_path: Path) -> None:
    starter.write_starter(tmp_path)
    for path in (tmp_path / "hosts").iterdir():
        path.unlink()
    added = commands.run("hosts.add", "spark1", "--offline", "--yes", cwd=tmp_path)
    assert added.returncode == 0, added.stderr
    assert list(Inventory.load(tmp_path).hosts) == ["spark1"]
