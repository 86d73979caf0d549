"""`--help`: every command in a group with one line, its options under names that mean something, two examples that can be typed."""

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from invoke.collection import Collection
from invoke.exceptions import Exit as InvokeExit
from invoke.tasks import Task

from sparkwright.cli import namespace
from sparkwright.cli.framework import help, program
from sparkwright.cli.framework.command import SHORT_OPTIONS
from sparkwright.cli.help_groups import COMMAND_NAMES, GROUPS, find_examples
from sparkwright.engines.vllm.rules import RULES
from sparkwright.modules.registry import NAMES as MODULES
from sparkwright.project import starter
from sparkwright.sandbox.faults import FAULTS

BIN = Path(sys.executable).parent
COMMANDS = dict(help.walk_tasks(namespace))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("lab")
    starter.write_starter(project)
    return project


def run_line(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{BIN}/{line}"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def parse_program(*words: str) -> program.Sparkwright:
    """Return the program after it has parsed a command line, before it runs the command."""
    value = program.Sparkwright(name="sparkwright", binary="sparkwright", namespace=namespace)
    value.create_config()
    value.parse_core(["sparkwright", *words])
    value.parse_collection()
    value.parse_tasks()
    return value


@pytest.fixture(scope="module")
def contexts() -> dict[str, object]:
    return {str(context.name): context for context in namespace.to_contexts()}


def test_every_command_is_in_one_group_and_every_name_in_a_group_is_a_command() -> None:
    assert sorted(COMMAND_NAMES) == sorted(COMMANDS)


def test_help_shows_every_command_on_one_line_of_a_narrow_terminal() -> None:
    lines = help.format_command_list(namespace).splitlines()
    assert [line.rstrip(":") for line in lines if line and not line.startswith(" ")] == list(GROUPS)
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert names == [help.display_name(namespace, name) for name in COMMAND_NAMES]
    assert [line for line in lines if len(line) > 80 or (line.startswith("  ") and not line.endswith("."))] == []


def test_the_programs_help_has_our_commands_and_no_option_that_does_nothing_here(folder: Path) -> None:
    output = run_line(folder, "sparkwright --help").stdout
    assert set(re.findall(r"--[a-z-]+", output.partition("Options:")[2])) == {"--help", "--list", "--version"}
    assert all(title in output for title in GROUPS)


@pytest.mark.parametrize("line", ["--pty hosts", "hosts --pty", "--hide both hosts", "hosts -w", "--echo hosts"])
def test_an_option_that_does_nothing_here_is_refused(folder: Path, line: str) -> None:
    result = run_line(folder, f"sparkwright {line}")
    assert result.returncode == 5 and result.stderr.startswith("unknown option -"), result.stderr


@pytest.mark.parametrize("line", ["sparkwright --help", "sparkwright deploy --help", "invoke --list"])
def test_the_head_of_help_is_all_that_is_printed(folder: Path, line: str) -> None:
    result = run_line(folder, f"{line} | head -3")
    assert (result.returncode, result.stderr, len(result.stdout.splitlines())) == (0, "", 3)


def test_invoke_lists_our_groups_and_a_users_own_tasks_after_them(folder: Path, tmp_path: Path) -> None:
    mine = "from invoke import task\nfrom sparkwright.cli import namespace\n@task\ndef mine(c):\n    'My own.'\n"
    (tmp_path / "tasks.py").write_text(f"{mine}namespace.add_task(mine)\n")
    output = run_line(tmp_path, "invoke --list").stdout
    assert re.findall(r"^([A-Z].*):$", output, re.M) == [*GROUPS, "Other tasks"]
    assert re.search(r"^  mine +My own\.$", output, re.M)
    assert "Serve:" in run_line(folder, "invoke --list").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_help_is_what_it_does_its_options_and_two_examples(name: str, contexts: dict[str, object]) -> None:
    help_text = help.command_help("sparkwright", name, namespace, contexts[name])
    assert "Docstring" not in help_text and "core-opts" not in help_text
    assert help_text.startswith(f"Usage: sparkwright {help.display_name(namespace, name)} ")
    assert str(inspect.getdoc(COMMANDS[name])).splitlines()[0] in help_text
    assert help_text.index("\nOptions:\n") < help_text.index("\nExamples:\n")
    examples = help_text.partition("\nExamples:\n")[2].splitlines()
    assert len(examples) == 2 and len(set(examples)) == 2
    assert all(line.startswith(f"  sparkwright {help.display_name(namespace, name)}") for line in examples)
    assert max(map(len, help_text.partition("\nExamples:\n")[0].splitlines())) <= 100


@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_has_a_text_and_a_short_name_only_if_it_is_one_of_five(
    name: str, contexts: dict[str, object]
) -> None:
    for option in contexts[name].args.values():  # type: ignore[attr-defined]
        assert option.help, f"{name} --{option.name} has no help"
        short = [item for item in option.names[1:] if len(item) == 1]
        assert short == ([SHORT_OPTIONS[option.name]] if option.name in SHORT_OPTIONS else []), (
            f"{name} --{option.name}"
        )
    assert isinstance(COMMANDS[name], Task)


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name in COMMAND_NAMES for words in find_examples(name) or ()]
)
def test_an_example_can_be_typed(name: str, words: str) -> None:
    spoken = help.display_name(namespace, name)
    parsed = parse_program(*shlex.split(f"{spoken} {words}")).tasks
    assert [context.name for context in parsed] == [name]


def test_examples_name_rules_modules_faults_and_recipes_that_there_are(folder: Path) -> None:
    recipes = {path.stem for path in (folder / "recipes").rglob("*.yml")}
    known = {"explain": RULES, "docs.module": MODULES, "sandbox.fault": [*FAULTS, "none"]}
    for name, names in known.items():
        assert {words for words in find_examples(name) or () if words} <= set(names)
    lines = " ".join(words for name in COMMAND_NAMES for words in find_examples(name) or ())
    assert set(re.findall(r"(?:--recipe|-a|-b) (\S+)", lines)) <= recipes


@pytest.mark.parametrize("words", ["-H sandbox -C -D -j -d", "--host sandbox --check --diff --json --debug"])
def test_five_options_have_short_names(words: str) -> None:
    (context,) = parse_program("deploy", *words.split()).tasks
    short_names = {option.name for option in context.args.values() if option.got_value}
    assert short_names == {"host", "check", "diff", "json", "debug"}


def test_minus_h_is_help_in_every_command(folder: Path) -> None:
    result = run_line(folder, "sparkwright restart -h")
    assert result.returncode == 0 and result.stdout.startswith("Usage: sparkwright restart [options]")


def test_a_task_that_is_not_ours_keeps_its_numbers() -> None:
    def every(context: object, every: int = 1) -> None:
        """A task of the user's own."""

    own = program.Sparkwright(name="sparkwright", binary="sparkwright", namespace=Collection(Task(every)))
    own.create_config()
    own.parse_core(["sparkwright", "every", "--every", "-5"])
    own.parse_collection()
    own.parse_tasks()
    with pytest.raises(InvokeExit):
        parse_program("history", "--host", "sandbox", "--last", "-5")
