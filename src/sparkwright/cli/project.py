"""The commands `render`, `init`, `schema`, `docs.module` and `completion`."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.collection import Collection

from sparkwright import program
from sparkwright.cli.framework.command import Command, command
from sparkwright.cli.framework.help import display_name, first_line
from sparkwright.cli.help_groups import COMMAND_NAMES
from sparkwright.console.command_output import print_json_line, print_text
from sparkwright.errors import Exit, Refused
from sparkwright.project import starter

if TYPE_CHECKING:
    from sparkwright.app import completion


@command(
    help={
        "host": "the hosts whose docker run commands are printed",
        "recipe": "use this recipe instead of the host's",
        "json": "one JSON object per host: host, script",
    }
)
def render(host: str = "", recipe: str = "", json: bool = False) -> None:
    """Print the docker run command of a host's recipe.

    Prints a script to run by hand on the host. For a cluster, prints one script per member, in start order.
    """
    from sparkwright.app.connect import select_hosts
    from sparkwright.app.plans.recipes import render_docker_run_scripts

    for name, script in render_docker_run_scripts(select_hosts(host), recipe):
        if json:
            print_json_line({"host": name, "script": script})
        elif sys.stdout.isatty():
            print_text(script, end="")
        else:
            print(script, end="")  # unchanged for a file or a program


@command(
    word="folder",
    help={
        "folder": "folder of the new project (default: the current one)",
        "diff": "write nothing: print a patch from this project's files to this version's; exit code 2 if they differ",
        "address": "the first host: [USER@]ADDRESS[:PORT], an ssh alias, or sandbox; init logs in to it",
        "name": "the host's name in the project (default: the first label of its address)",
        "recipe": "the recipe to serve (default: the best that fits)",
        "groups": "the host's groups, e.g. lab,night (default: lab)",
        "offline": "with --address: do not log in",
        "yes": "do not ask for confirmation",
    },
)
def init(
    folder: str | None = None,
    diff: bool = False,
    address: str = "",
    name: str = "",
    recipe: str = "",
    groups: str = "",
    offline: bool = False,
    yes: bool = False,
) -> Exit:
    """Create a project in an empty folder.

    On a terminal it asks three questions: which host (found in your ssh configuration, known_hosts and by mDNS, or the
    sandbox), which recipe, and whether to write the files. It logs in, shows what it finds, and proposes a recipe. Options
    replace the questions: --address adds a host, --yes creates a project with only an example host.

    Writes hosts/, recipes/, tasks.py and .gitignore; playbooks and templates stay in the package until `playbook.eject` copies
    one. After an upgrade, `init --diff` prints the changes to the shipped files, and `init --diff | git apply` applies them; for
    ejected files, use `playbook.update`.
    """
    has_host_options = bool(name or recipe or groups or offline)
    if has_host_options and not address:
        raise Refused("--name, --recipe, --groups and --offline need --address.")
    if diff and (address or yes):
        raise Refused("--diff can't be combined with --address or --yes.")
    if address:
        from sparkwright.app.setup import dialog
        from sparkwright.visible import parse_list

        host = dialog.host_from_options(address, name=name, groups=tuple(parse_list(groups)))
        return dialog.create_from_options(Path(folder or "."), host, recipe_name=recipe, offline=offline)
    if not (diff or yes) and sys.stdin.isatty() and sys.stdout.isatty():
        from sparkwright.app.setup import dialog

        return dialog.create_interactively(Path(folder or "."))
    if diff:
        patch = starter.build_patch(Path(folder or "."))
        print(patch, end="")
        return Exit.CHANGES if patch else Exit.OK
    for path in starter.write_starter(Path(folder or ".")):
        print_text(path)
    print(f"Fill in hosts/spark1.yml, then: {program.name()} deploy --host spark1   (or --host sandbox, to try)")
    return Exit.OK


@command(
    positional=["kind"],
    help={
        "kind": "host, groups, recipe, registries, playbook, tasks, lock or results; events, or json/COMMAND for a --json output",
        "json": "print it on one line",
    },
)
def schema(kind: str, json: bool = False) -> None:
    """Print the JSON Schema of a kind of file, for editors."""
    from sparkwright.app import json_output

    print(dumps(json_output.schema(kind), indent=None if json else 2))


@command(
    name="module", word="name", help={"name": "a module (default: list them)", "json": "one JSON object: name, text"}
)
def module_docs(name: str | None = None, json: bool = False) -> None:
    """Show a module's documentation.

    Its guarantees, its arguments with units, its return values, and possible errors.
    """
    from sparkwright.app import manual

    text = program.rewrite_commands(manual.module_page(name) if name else manual.module_index())
    print_json_line({"name": name, "text": text}) if json else print(text)


def build_completion_command(namespace: Collection) -> Command:
    """Return the command `completion` for the commands of a collection."""

    @command(positional=["shell"], help={"shell": "bash, zsh or fish"})
    def completion(shell: str) -> None:
        """Print a shell's completion script.

        It completes commands, options, and the hosts, recipes and playbooks of the project in the current folder. For bash,
        add this to ~/.bashrc: eval "$(sparkwright completion bash)"
        """
        from sparkwright.app import completion as scripts

        print(scripts.render_script(shell, completion_commands(namespace)), end="")

    return completion


def completion_commands(collection: Any) -> list[completion.Command]:
    """Return all commands for the completion script, in the order of `--help`."""
    from sparkwright.app import completion

    contexts = {context.name: context for context in collection.to_contexts()}
    return [
        completion.Command(
            display_name(collection, name),
            first_line(collection[name]),
            tuple(
                completion.Option(
                    option_spellings(option),
                    option.help or "",
                    completion.option_value_kind(name, option.names[0], option.kind),
                )
                for option in contexts[name].args.values()
                if not option.positional and option.name != collection[name].word
            ),
            completion.ARGUMENT_KINDS.get(name, ""),
        )
        for name in COMMAND_NAMES
    ]


def option_spellings(option: Any) -> tuple[str, ...]:
    """Return the spellings of an option, short form first."""
    names = [name.replace("_", "-") for name in option.names]
    if option.kind is bool and option.default is True:
        names = [f"no-{names[0]}"]
    return tuple(sorted((f"-{name}" if len(name) == 1 else f"--{name}" for name in names), key=len))


TASKS = {"": [render, init, schema], "docs": [module_docs]}
