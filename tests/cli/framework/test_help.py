"""`--help` and `--list`: groups, options, and two valid examples for each command."""

import inspect
import re
import shlex
import subprocess
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
from sparkwright.sandbox.faults import FAULTS
from tests import commands

BIN = commands.PROGRAM.parent
COMMANDS = dict(help.walk_tasks(namespace))


def run_line(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    return commands.run_process("bash", "-o", "pipefail", "-c", f"{BIN}/{line}", cwd=folder)


def parse_program(*words: str) -> program.Sparkwright:
    """Return the program after it has parsed a command line, before it runs the command."""
    return parse_line(program.Sparkwright(name="sparkwright", binary="sparkwright", namespace=namespace), *words)


def parse_line(parser: program.Sparkwright, *words: str) -> program.Sparkwright:
    parser.create_config()
    parser.parse_core(["sparkwright", *words])
    parser.parse_collection()
    parser.parse_tasks()
    return parser


@pytest.fixture(scope="module")
def contexts() -> dict[str, object]:
    return {str(context.name): context for context in namespace.to_contexts()}


def test_groups_list_every_command_once() -> None:
    assert sorted(COMMAND_NAMES) == sorted(COMMANDS)


def test_list_of_commands_has_one_short_line_for_each() -> None:
    lines = help.format_command_list(namespace).splitlines()
    assert [line.rstrip(":") for line in lines if line and not line.startswith(" ")] == list(GROUPS)
    names = [line.split()[0] for line in lines if line.startswith("  ")]
    assert names == [help.display_name(namespace, name) for name in COMMAND_NAMES]
    assert [line for line in lines if len(line) > 80 or (line.startswith("  ") and not line.endswith("."))] == []


def test_program_help_has_the_groups_and_three_options(folder: Path) -> None:
    output = run_line(folder, "sparkwright --help").stdout
    assert set(re.findall(r"--[a-z-]+", output.partition("Options:")[2])) == {"--help", "--list", "--version"}
    assert all(title in output for title in GROUPS)


@pytest.mark.parametrize("line", ["--pty hosts", "hosts --pty", "--hide both hosts", "hosts -w", "--echo hosts"])
def test_option_of_invoke_is_refused(folder: Path, line: str) -> None:
    result = run_line(folder, f"sparkwright {line}")
    assert result.returncode == 5 and result.stderr.startswith("unknown option -"), result.stderr


@pytest.mark.parametrize("line", ["sparkwright --help", "sparkwright deploy --help", "invoke --list"])
def test_help_into_a_closed_pipe_ends_quietly(folder: Path, line: str) -> None:
    for reader in ("true", "head -3"):
        result = run_line(folder, f"{line} | {reader}")
        assert (result.returncode, result.stderr) == (0, "")


def test_invoke_lists_the_groups_and_then_a_users_own_tasks(folder: Path, tmp_path: Path) -> None:
    task = "from invoke import task\nfrom sparkwright.cli import namespace\n@task\ndef mine(c):\n    'My own.'\n"
    (tmp_path / "tasks.py").write_text(f"{task}namespace.add_task(mine)\n")
    output = run_line(tmp_path, "invoke --list").stdout
    assert re.findall(r"^([A-Z].*):$", output, re.M) == [*GROUPS, "Other tasks"]
    assert re.search(r"^  mine +My own\.$", output, re.M)
    assert "Serve:" in run_line(folder, "invoke --list").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_its_options_and_two_examples(name: str, contexts: dict[str, object]) -> None:
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
def test_every_option_has_a_help_text_and_five_a_short_name(name: str, contexts: dict[str, object]) -> None:
    for option in contexts[name].args.values():  # type: ignore[attr-defined]
        assert option.help, f"{name} --{option.name} has no help"
        short_names = [item for item in option.names[1:] if len(item) == 1]
        expected = [SHORT_OPTIONS[option.name]] if option.name in SHORT_OPTIONS else []
        assert short_names == expected, f"{name} --{option.name}"
    assert isinstance(COMMANDS[name], Task)


@pytest.mark.parametrize(
    ("name", "words"), [(name, words) for name in COMMAND_NAMES for words in find_examples(name) or ()]
)
def test_example_is_a_valid_command_line(name: str, words: str) -> None:
    parsed = parse_program(*shlex.split(f"{help.display_name(namespace, name)} {words}")).tasks
    assert [context.name for context in parsed] == [name]


def test_examples_name_existing_rules_modules_faults_and_recipes(folder: Path) -> None:
    recipes = {path.stem for path in (folder / "recipes").rglob("*.yml")}
    known = {"explain": RULES, "docs.module": MODULES, "sandbox.fault": [*FAULTS, "none"]}
    for name, names in known.items():
        assert {words for words in find_examples(name) or () if words} <= set(names)
    lines = " ".join(words for name in COMMAND_NAMES for words in find_examples(name) or ())
    assert set(re.findall(r"(?:--recipe|-a|-b) (\S+)", lines)) <= recipes


@pytest.mark.parametrize("words", ["-H sandbox -C -D -j -d", "--host sandbox --check --diff --json --debug"])
def test_short_and_long_options_are_the_same(words: str) -> None:
    (context,) = parse_program("deploy", *words.split()).tasks
    given = {option.name for option in context.args.values() if option.got_value}
    assert given == {"host", "check", "diff", "json", "debug"}


def test_number_of_a_users_own_task_is_not_checked() -> None:
    def every(context: object, every: int = 1) -> None:
        """A task of the user's own."""

    own = program.Sparkwright(name="sparkwright", binary="sparkwright", namespace=Collection(Task(every)))
    parse_line(own, "every", "--every", "-5")
    with pytest.raises(InvokeExit):
        parse_program("history", "--host", "sandbox", "--last", "-5")
