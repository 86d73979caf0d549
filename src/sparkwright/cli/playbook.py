"""The `playbook.eject`, `playbook.update` and `playbook.clean` commands, for the project's own playbooks and templates."""

from __future__ import annotations

from sparkwright.cli.framework.command import command
from sparkwright.errors import Exit, Refused


@command(
    word="name",
    help={
        "name": "a shipped playbook, part or template: deploy, parts/prove, client.j2",
        "list": "list all files with their state: shipped, ejected, changed, copied (by an earlier init) or own",
        "json": "one JSON object per file",
    },
)
def eject(name: str | None = None, list: bool = False, json: bool = False) -> Exit:
    """Copy a shipped playbook, part or template for editing.

    All commands use the project's copy from then on. Its first lines contain the version that it came from, and .ejected/ keeps
    the original. `lint` reports later changes to the shipped file, and `playbook.update` merges them. An existing file is not
    replaced.
    """
    from sparkwright.app import playbook_files

    if list:
        return playbook_files.list_files(json=json)
    if not name:
        raise Refused("no file was named.", fix="`playbook.eject --list` lists them.")
    return playbook_files.eject(name, json=json)


@command(
    positional=["name"],
    help={
        "name": "an ejected playbook, part or template",
        "mine": "keep your file, and compare it with this version's shipped file from now on",
        "check": "only show both sets of changes; exit code 2 if the shipped file has changed",
        "json": "one JSON object",
    },
)
def update(name: str, mine: bool = False, check: bool = False, json: bool = False) -> Exit:
    """Merge the shipped file's changes into an ejected one.

    Shows what sparkwright changed since the file was ejected and what you changed, and merges both. If both changed the same
    lines, nothing is written (exit code 5).
    """
    from sparkwright.app import playbook_files

    return playbook_files.update(name, mine=mine, check=check, json=json)


@command(
    help={
        "check": "only show; exit code 2 if something would be removed",
        "yes": "do not ask for confirmation",
        "json": "one JSON object per file: why it is kept (empty if it can be removed), and whether it was removed",
    }
)
def clean(check: bool = False, yes: bool = False, json: bool = False) -> Exit:
    """Remove unchanged copies of shipped files, after asking.

    Earlier versions of `init` copied playbooks, templates and schemas. Files that you changed are kept, and so are files that
    they need.
    """
    from sparkwright.app import playbook_files

    return playbook_files.clean(check=check, yes=yes, json=json)


TASKS = {"playbook": [eject, update, clean]}
