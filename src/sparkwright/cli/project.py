"""The commands that touch no host: render, hosts, init, schema, docs.module."""

from __future__ import annotations

import sys
from pathlib import Path

from invoke.collection import Collection
from invoke.tasks import task

from sparkwright import program
from sparkwright.app.outcome import optional_word, reporting
from sparkwright.console.out import say, say_json
from sparkwright.errors import Exit


@task(
    help={
        "host": "whose docker run command",
        "recipe": "another recipe than the host's",
        "json": "one JSON object: host, script",
        "debug": "show the traceback",
    }
)
@reporting
def render(context: object, host: str = "", recipe: str = "", json: bool = False, debug: bool = False) -> int:
    """Print the docker run command of a host's recipe, as a script that works by hand."""
    from sparkwright.app.connect import choose
    from sparkwright.app.plans.planning import docker_run_script

    chosen = choose(host)
    script = docker_run_script(chosen.hosts[0], chosen.project, recipe)
    if json:
        say_json({"host": chosen.hosts[0].name, "script": script})
    elif sys.stdout.isatty():
        say(script, end="")
    else:
        print(script, end="")  # a file or a program gets it byte for byte
    return 0


@task(help={"host": "only these", "json": "one JSON object a host", "debug": "show the traceback"})
@reporting
def hosts(context: object, host: str = "all", json: bool = False, debug: bool = False) -> int:
    """List the hosts of the inventory: address, groups, recipe."""
    from sparkwright.app.connect import choose
    from sparkwright.console import grid, listed

    found = choose(host).hosts
    if json:
        for one in found:
            about = {"host": one.name, "connection": one.connection, "address": one.address}
            say_json({**about, "groups": list(one.groups), "recipe": one.recipe})
        return 0
    rows = [
        (
            *(one.name, one.connection if one.connection != "ssh" else f"ssh {one.address}"),
            *(",".join(one.groups), one.recipe or "-"),
        )
        for one in found
    ]
    listed.show([*map(grid.Column, ("HOST", "ADDRESS")), grid.Column("GROUPS", 1), grid.Column("RECIPE")], rows)
    return 0


@task(
    help={
        "folder": "where to; the current folder if not given",
        "diff": "write nothing: print a patch from this project's files to this version's; exit code 2 if they differ",
        "debug": "show the traceback",
    },
    positional=optional_word("init", "folder"),
)
@reporting
def init(context: object, folder: str | None = None, diff: bool = False, debug: bool = False) -> int:
    """Lay hosts/, recipes/, playbooks/, templates/ and tasks.py into an empty folder.

    After an upgrade, `init --diff` prints what this version ships differently; `init --diff | git apply` takes it.
    """
    from sparkwright.project import starter

    if diff:
        patch = starter.patch(Path(folder or "."))
        print(patch, end="")
        return int(Exit.CHANGES if patch else Exit.OK)
    for path in starter.lay(Path(folder or ".")):
        say(path)
    print(f"Fill in hosts/spark1.yml, then: {program.name()} deploy --host spark1   (or --host sandbox, to try)")
    return 0


@task(
    positional=["kind"],
    help={"kind": "host, groups, recipe, playbook, lock or results", "json": "on one line, instead of indented"},
)
@reporting
def schema(context: object, kind: str, json: bool = False) -> int:
    """Print the JSON Schema of one kind of file, for an editor."""
    from json import dumps

    from sparkwright.app import schemas

    print(dumps(schemas.schema(kind), indent=None if json else 2))
    return 0


@task(
    name="module",
    positional=optional_word("docs.module", "name"),
    help={"name": "a module; without a name they are listed", "json": "one JSON object: name, text"},
)
@reporting
def module_docs(context: object, name: str | None = None, json: bool = False) -> int:
    """What a module guarantees, its arguments with units, what it returns, what can go wrong."""
    from sparkwright.app import docs

    text = program.typed(docs.module(name) if name else docs.index())
    say_json({"name": name, "text": text}) if json else print(text)
    return 0


def docs_collection() -> Collection:
    """`invoke docs.module NAME`."""
    return Collection(module_docs)


TASKS = [render, hosts, init, schema]
