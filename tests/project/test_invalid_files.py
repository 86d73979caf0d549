"""Mistakes in hosts, groups, variables and templates are refused with their line and a suggestion."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sparkwright.app.plans.recipes import render_template
from sparkwright.errors import Exit, Refused
from sparkwright.project import lockfile, playbook, recipe, registries, shipped_files, starter
from sparkwright.project.folder import Project
from sparkwright.project.inventory import patterns
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.protocol.plan import Plan


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    starter.write_starter(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_files(project: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)


GROUPS = "all: {}\nlab: {}\n"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"hosts/spark1.yml": "groups: [labb]\n"},
         "hosts/spark1.yml:1: the group `labb` appears nowhere else. Did you mean `lab`? "
         "To create it, add `labb: {}` to hosts/groups.yml."),
        ({"hosts/groups.yml": "lab:\n  hosts:\n    - spark1\n    - sparc2\n"},
         "hosts/groups.yml:4: `lab.hosts`: no host named 'sparc2'. Did you mean `spark1`?"),
        ({"hosts/lab.yml": "address: x\n"}, "hosts/lab.yml:1: the host has the same name as a group (hosts/groups.yml:"),
        ({"hosts/all.yml": "address: x\n"}, "hosts/all.yml:1: a host cannot be named `all`: that means all hosts."),
        ({"hosts/a,b.yml": "address: x\n"}, "hosts/a,b.yml:1: no pattern can match this host"),
        ({"hosts/groups.yml": GROUPS + "'!gpu': {}\n"}, "hosts/groups.yml:3: no pattern can match the group `!gpu`"),
        ({"hosts/groups.yml": "lab: {}\nall: {hosts: [spark1]}\n"}, "hosts/groups.yml:2: `all` means all hosts"),
        ({"hosts/spark2.yaml": "address: x\n"}, "hosts/spark2.yaml: this file is not read: its name must end in .yml."),
        ({"hosts/groups.yaml": GROUPS}, "hosts/groups.yaml: this file is not read"),
        ({"hosts/spark2.YML": "address: x\n"}, "hosts/spark2.YML: this file is not read: its name must end in .yml."),
        ({"hosts/spark1.yml": "home: ops\n"}, "hosts/spark1.yml:1: `home`: 'ops' is not a directory path: start with /"),
        ({"hosts/groups.yml": "- lab\n"},
         "hosts/groups.yml:1: groups.yml must be a mapping of groups by name, got a list. Write `lab: {hosts: [spark1]}`."),
        ({"hosts/groups.yml": "all: {}\nlab: [spark1]\n"},
         "hosts/groups.yml:2: the group `lab` must be a mapping, got a list. List its members as `hosts: [spark1]`"),
        ({"hosts/groups.yml": "lab: {}\nall:\n  vars:\n    reserve_gb: 4\n"},
         "hosts/groups.yml:4: `vars.reserve_gb` is not used by any playbook or template. Did you mean `reserve_gib`?"),
        ({"hosts/spark1.yml": "vars:\n  Drain_S: 1\n"}, "hosts/spark1.yml:2: `vars.Drain_S` is not used by any playbook"),
        ({"hosts/spark1.yml": "vars:\n  rollback: flase\n"}, "hosts/spark1.yml:2: `vars.rollback` must be true or false."),
        ({"hosts/groups.yml": "all: {}\nlab:\n  model_from: sparc1\n"},
         "hosts/groups.yml:3: `model_from`: no host named 'sparc1'. Did you mean `spark1`?"),
    ],
)  # fmt: skip
def test_mistake_is_refused_with_its_line(project: Path, files: dict[str, str], message: str) -> None:
    write_files(project, files)
    with pytest.raises(Refused) as excinfo:
        Inventory.load(project)
    assert message in str(excinfo.value)
    assert excinfo.value.exit is Exit.REFUSED
    assert isinstance(patterns.read_ssh_hosts(project, "spark1"), list), (
        "the early look at hosts leaves errors to the check"
    )


@pytest.mark.parametrize(
    "files",
    [
        {"hosts/spark2.yml": "groups: [rack]\n", "hosts/spark1.yml": "groups: [rack]\n"},  # a group of several hosts
        {"hosts/groups.yml": GROUPS + "rack: {}\n", "hosts/spark1.yml": "groups: [rack]\n"},
        {"hosts/spark1.yml": "groups: [all]\n"},
        {"hosts/.#spark1.yml": "an editor's lock", "hosts/.spark2.yaml": ""},
        {"hosts/spark1.yml": "vars: {drain: 1}\n", "templates/own.j2": "wait {{ drain }}"},
        {"hosts/spark1.yml": "vars: {drain: 1, drain_s: '{{ drain }}'}\n"},
        {"hosts/spark1.yml": "vars: {rollback: '{{ host.name != \"spark1\" }}', mine: [1]}\n"},
    ],
)
def test_valid_inventory_is_loaded(project: Path, files: dict[str, str]) -> None:
    write_files(project, files)
    names = Inventory.load(project).names()
    assert "spark1" in names and not any(name.startswith(".") for name in names)


def test_group_all_has_the_lowest_precedence(project: Path) -> None:
    groups = "all: {vars: {ollama: leave}}\nlab: {vars: {ollama: stop}}\n"
    write_files(project, {"hosts/groups.yml": groups, "hosts/spark1.yml": "groups: [lab, all]\n"})
    assert Inventory.load(project).hosts["spark1"].vars["ollama"] == "stop"


def compile_deploy(project: Path, name: str = "spark1") -> Plan:
    """Return the plan of a deploy without the facts of its host."""
    host = Inventory.load(project).hosts[name]
    loaded_recipe = recipe.load(project, host.recipe or "")
    image = {"digest": f"sha256:{'0' * 64}", "manifests": []}
    model: dict[str, object] = {"commit": "0" * 40, "files": []}
    names = recipe.scope(host, "ops", loaded_recipe, {"image": image, "model": model})
    play = playbook.load(shipped_files.shipped_folder() / "playbooks/deploy.yml", project).plays[0]
    options = playbook.Options(check=True, diff=False)
    return playbook.compile(play, host, names, options, run_id="x", project=project)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"hosts/groups.yml": "lab: {}\nall:\n  vars:\n    reserve_gib: lots\n"},
         "hosts/groups.yml:4: `vars.reserve_gib`, used at playbooks/deploy.yml:"),
        ({"hosts/groups.yml": "all: {}\nlab:\n  vars:\n    ollama: unlod\n"},
         "hosts/groups.yml:4: `vars.ollama`, used at playbooks/deploy.yml:"),
        ({"hosts/spark1.yml": "groups: [lab]\nrecipe: qwen3.5-35b\nvars:\n  drain_s: '{{ drian_s }}'\n"},
         "hosts/spark1.yml:4: unknown variable `drian_s`."),
        ({"hosts/spark1.yml": "recipe: qwen3.5-35b\nvars:\n  drain_s: '{{ 1 / 0 }}'\n"}, "hosts/spark1.yml:3: division by zero"),
        ({"hosts/spark1.yml": "recipe: qwen3.5-35b\nvars:\n  drain_s: '{{ 1 +'\n"},
         "hosts/spark1.yml:3: vars.drain_s: bad expression"),
        ({"hosts/groups.yml": "lab: {}\nall:\n  vars:\n    a: '{{ b }}'\n    b: '{{ a }}'\n"},
         "hosts/groups.yml:4: variables refer to each other"),
        ({"templates/docker-run.sh.j2": "#!/bin/sh\n\n{{ container.name }} {{ contaner }}\n"},
         "templates/docker-run.sh.j2:3: unknown variable `contaner`. Did you mean `container`?"),
        ({"templates/docker-run.sh.j2": "#!/bin/sh\n{{ container.nam.x }}\n"},
         "templates/docker-run.sh.j2:2: 'dict object' has no attribute 'nam' in '{{ container.nam.x }}'."),
        ({"templates/docker-run.sh.j2": "#!/bin/sh\n{% if container %}\n{{ host.name | nofilter }}\n{% endif %}\n"},
         "templates/docker-run.sh.j2:3: No filter named 'nofilter' found in '{{ host.name | nofilter }}'."),
    ],
)  # fmt: skip
def test_mistake_found_in_a_plan_has_the_line_of_its_cause(project: Path, files: dict[str, str], message: str) -> None:
    compile_deploy(project)
    write_files(project, files)
    with pytest.raises(Refused) as excinfo:
        compile_deploy(project)
    assert message in str(excinfo.value)


@pytest.mark.parametrize("name", ["docker-run.sh.j2", "client.j2"])
def test_mistake_in_a_rendered_template_has_its_line(project: Path, name: str) -> None:
    write_files(project, {f"templates/{name}": "one\ntwo\n{{ three }}\n"})
    with pytest.raises(Refused, match=f"templates/{name}:3: 'three' is undefined"):
        render_template(project, name, {})


def test_recipe_file_with_a_wrong_suffix_is_refused(project: Path) -> None:
    write_files(project, {"recipes/mine.yaml": "", "hosts/spark1.yml": "groups: [lab]\nrecipe: qwen3.5-35\n"})
    host = Inventory.load(project).hosts["spark1"]
    assert host.set_at["recipe"] == "hosts/spark1.yml:2"
    with pytest.raises(Refused, match=r"recipes/mine.yaml: this file is not read"):
        recipe.load(project, "mine")
    with pytest.raises(Refused, match=r"recipes/mine.yaml: this file is not read"):
        recipe.names(project)


LONG = "spark" + "a" * 100_000


@pytest.mark.parametrize(
    "files",
    [
        {"hosts/spark1.yml": f"groups: [{LONG}]\n"},
        {"hosts/spark1.yml": f"model_from: {LONG}\n"},
        {"hosts/groups.yml": f"lab: {{hosts: [{LONG}]}}\n"},
        {"hosts/groups.yml": f"'!{LONG}': {{}}\n"},
        {"hosts/groups.yml": f"{LONG}: {{cluster: {{recipe: qwen3.5-35b, head: spark1}}}}\n"},
        {"hosts/groups.yml": f"lab: {{cluster: {{recipe: qwen3.5-35b, head: {LONG}}}}}\n"},
    ],
)
def test_long_name_is_shortened_in_the_message(project: Path, files: dict[str, str]) -> None:
    write_files(project, files)
    with pytest.raises(Refused) as excinfo:
        Inventory.load(project).match("all")
    assert len(excinfo.value.message) < 300, excinfo.value.message[:500]


READERS: dict[str, Callable[[Path], object]] = {
    "hosts/spark1.yml": Inventory.load,
    "hosts/groups.yml": Inventory.load,
    "recipes/qwen3-1.7b.yml": lambda project: recipe.load(project, "qwen3-1.7b"),
    "spark.lock": lockfile.load,
    "registries.yml": registries.load,
    "playbooks/deploy.yml": lambda project: playbook.load(Project(project).playbook("deploy"), project),
    "playbooks/parts/prove.yml": lambda project: playbook.load(Project(project).playbook("deploy"), project),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["broken link", "folder"])
def test_a_file_that_cannot_be_read_is_not_taken_for_a_missing_one(project: Path, name: str, kind: str) -> None:
    path = project / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        path.mkdir()
        message = f"{name}: cannot be read: Is a directory."
    else:
        path.symlink_to("elsewhere")
        message = f"{name}: a symbolic link to a file that does not exist."
    with pytest.raises(Refused) as excinfo:
        READERS[name](project)
    assert str(excinfo.value) == message


@pytest.mark.parametrize("name", ["hosts/groups.yml", "recipes/qwen3-1.7b.yml", "playbooks/deploy.yml"])
def test_unresolved_merge_conflict_is_named_with_its_line(project: Path, name: str) -> None:
    text = (project / name if (project / name).exists() else shipped_files.shipped_folder() / name).read_text()
    (project / name).parent.mkdir(exist_ok=True)
    (project / name).write_text(f"# ours\n<<<<<<< HEAD\n{text}=======\n{text}>>>>>>> theirs\n")
    with pytest.raises(Refused) as excinfo:
        READERS[name](project)
    assert str(excinfo.value).startswith(f"{name}:2: unresolved merge conflict. Keep the lines of one side")
