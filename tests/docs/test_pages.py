"""The documentation agrees with the code: generated pages are up to date, and annotated examples load."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml

from sparkwright.app import findings, json_output
from sparkwright.project import lockfile, playbook, recipe
from sparkwright.project.inventory.inventory import Inventory
from tests import conftest
from tests.docs import engine_rules, traps

TOP = Path(__file__).parent.parent.parent
DOCS = TOP / "docs"


def read_example(kind: str) -> str:
    match = re.search(r"```yaml\n(.*?)```", (DOCS / "files" / f"{kind}.md").read_text(), re.S)
    assert match
    return match[1]


def test_generated_pages_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec and spec.loader
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    stale = [str(path) for path, text in generate.pages().items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run `make docs`"
    assert generate.left_over() == [], "run `make docs`"


@pytest.mark.parametrize("kind", ["host", "groups", "recipe", "playbook", "lock"])
def test_annotated_example_matches_its_schema(kind: str) -> None:
    jsonschema.validate(yaml.safe_load(read_example(kind)), json_output.schema(kind))


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [("host", "hosts/s*"), ("groups", "hosts/groups"), ("recipe", "recipes/*"), ("playbook", "playbooks/*")],
)
def test_shipped_files_match_their_schema(kind: str, pattern: str) -> None:
    schema = json_output.schema(kind)
    validator = jsonschema.validators.validator_for(schema)(schema)
    paths = list(TOP.glob(f"{pattern}.yml"))
    assert paths
    for path in paths:
        validator.validate(yaml.safe_load(path.read_text()))


def test_annotated_examples_load_as_a_users_files(tmp_path: Path) -> None:
    for name in ("hosts", "recipes", "playbooks"):
        (tmp_path / name).mkdir()
    (tmp_path / "hosts/spark1.yml").write_text(read_example("host"))
    (tmp_path / "hosts/groups.yml").write_text(read_example("groups"))
    (tmp_path / "recipes/qwen3.5-35b.yml").write_text(read_example("recipe"))
    (tmp_path / "playbooks/note.yml").write_text(read_example("playbook"))
    (tmp_path / "spark.lock").write_text(read_example("lock"))
    host = Inventory.load(tmp_path).match("lab")[0]
    loaded_recipe = recipe.load(tmp_path, host.recipe or "")
    lock = lockfile.load(tmp_path)
    names = recipe.scope(host, "ops", loaded_recipe, {"image": lock.image(loaded_recipe.image), "model": None})
    book = playbook.load(tmp_path / "playbooks/note.yml", tmp_path)
    plan = playbook.compile(book.plays[0], host, names, playbook.Options(), run_id="r", project=tmp_path)
    assert [handler.name for handler in plan.handlers] == ["Log the message"]
    assert names["container"]["volumes"] == ("/srv/home/ops/models/qwen35-35b-hf:/models/qwen35:ro",)


@pytest.mark.parametrize("name", engine_rules.ENGINES)
def test_table_of_engines_names_every_rule(name: str) -> None:
    assert set(engine_rules.named_rules(name)) == engine_rules.rule_names(name)


def test_table_of_engines_is_up_to_date() -> None:
    assert engine_rules.PAGE.read_text() == engine_rules.render_page(), "stale: python -m tests.docs.engine_rules"


def test_table_of_traps_is_up_to_date_and_names_existing_tests_and_rules() -> None:
    assert list(traps.find_mistakes()) == []
    assert {rule for trap in traps.load_traps() for rule in trap.rules} <= set(findings.rule_titles())
    assert traps.PAGE.read_text() == traps.render_page(), "run `make docs`"


def test_most_traps_in_scope_are_prevented_or_named() -> None:
    in_scope = traps.traps_in_scope()
    assert len(in_scope) >= traps.MIN_IN_SCOPE
    assert sum(trap.answer in traps.MET for trap in in_scope) >= traps.MIN_MET


def test_slow_tests_are_run_by_ci_or_listed_as_left_out() -> None:
    section = (TOP / "docs/testing.md").read_text().partition("## What CI leaves out\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    left_out = tuple(re.findall(r"`(tests/[^`]+)`", " ".join(row.split("|")[1] for row in rows)))
    files = [path.relative_to(TOP).as_posix() for path in (TOP / "tests").rglob("test_*.py")]
    slow = [file for file in files if conftest.is_slow(file)]
    unlisted = [file for file in slow if not file.startswith((*conftest.CI_PARTS, *left_out))]
    assert not unlisted, "neither in CI_PARTS (tests/conftest.py) nor in the table of docs/testing.md"
    for name in left_out:
        assert any(file.startswith(name) and not file.startswith(conftest.CI_PARTS) for file in slow), name
    for part in conftest.CI_PARTS:
        file, _, function = part.partition("::")
        assert part in conftest.CI_ONLY or any(name.startswith(file) for name in slow), part
        assert not function or f"def {function.partition('[')[0]}(" in (TOP / file).read_text(), part


def tracked_files() -> set[str]:
    """Return the files and folders of the repository, folders with a slash at the end."""
    names = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True, check=True).stdout.split()
    return {*names, *(f"{folder}/" for name in names for folder in Path(name).parents)}


#: paths in a project or on a host
ELSEWHERE = re.compile(r"results/|spark1/|servers/|[~./]")


@pytest.mark.parametrize("page", sorted((DOCS / "decisions").glob("0*.md")), ids=lambda page: page.name[:4])
def test_valid_decision_record_names_existing_files(page: Path) -> None:
    text = page.read_text()
    if re.search(r"^\*Superseded by", text, re.M):
        return
    text = text.replace("engines/NAME/", "engines/vllm/")  # every engine has these files
    named = set(re.findall(r"`((?:[\w-]+/)*[\w-]+(?:/|\.(?:py|yml|j2|toml)))`", text))
    known = {f"/{name}" for name in tracked_files()}
    paths = [name for name in named if "/" in name and not ELSEWHERE.match(name)]
    assert [path for path in paths if not any(name.endswith(f"/{path}") for name in known)] == []


def test_manual_page_is_valid_for_troff() -> None:
    page = DOCS / "man/sparkwright.1"
    commands = {line for line in page.read_text().splitlines() if line.startswith((".", "'"))}
    assert {line.split()[0] for line in commands} == {
        ".TH", ".SH", ".SS", ".TP", ".IP", ".PP", ".B", ".I", ".br", ".RS", ".RE", ".nf", ".fi",
    }  # fmt: skip
    if groff := shutil.which("groff"):
        result = subprocess.run([groff, "-man", "-ww", "-z", str(page)], capture_output=True, text=True, check=True)
        assert result.stderr == ""
