"""The `hosts.add` command: add a host to an existing project."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from sparkwright.app.setup import files, first_host, questions
from sparkwright.app.setup.files import NewHost
from sparkwright.console.out import say, say_json
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.host.state import write_atomically
from sparkwright.project import recipe
from sparkwright.project.folder import Project
from sparkwright.project.inventory.inventory import Inventory


def add(host: NewHost | None, *, named: str, asking: bool, offline: bool, json: bool) -> Exit:
    """Survey a host, select its recipe, and write hosts/NAME.yml and its groups.

    Args:
        host: None to ask for it.

    Raises:
        Refused: the name is taken; nothing was done then.
        Unreachable: the host can't be surveyed, and nobody can confirm to continue.
    """
    project = Project.here()
    inventory = Inventory.load(project.root)
    host = host or first_host.ask_which(sandbox=False)
    files.refuse_name(host.name)
    path = project.root / "hosts" / f"{host.name}.yml"
    if host.name in inventory.hosts or host.name in inventory.groups or path.exists():
        what = "group" if host.name in inventory.groups else "host"
        raise Refused(
            f"there is a {what} {host.name} already.", fix="Give another name: `hosts.add NAME --address ADDRESS`."
        )
    recipes = [recipe.load(project.root, item) for item in recipe.names(project.root)]
    if named:
        recipe.load(project.root, named)
    reserve = _reserve_gib(inventory)
    how = {"asking": asking, "offline": offline, "quiet": json}
    found = first_host.chosen(host, recipes, reserve_gib=reserve, named=named, **how)
    if asking and not questions.agree(f"Write hosts/{found.host.name}.yml ({found.host.recipe or 'no recipe'})?"):
        say("Nothing was written.")
        return Exit.OK
    written = _write(project.root, found.host, found.lines)
    if json:
        about = {"host": found.host.name, "address": found.host.address, "recipe": found.host.recipe or None}
        budget = found.choice.fit.budget.to_json() if found.choice and found.choice.fit.budget else None
        groups = list(found.host.groups)
        say_json({**about, "groups": groups, "files": written, "survey": found.survey, "budget": budget})
        return Exit.OK
    for name in written:
        say(name)
    if found.choice is not None and found.choice.moved:
        say(
            f"It has the model in {found.choice.moved}: set `model.dir` of recipes/{found.choice.name}.yml to take it from there."
        )
        found = replace(found, choice=replace(found.choice, found=None))
    first_host.show_notes(found)
    first_host.show_next(found, Path.cwd())
    return Exit.OK


def _reserve_gib(inventory: Inventory) -> float:
    """Return the memory to leave free, in GiB: the largest reserve of the project's hosts."""
    given = [host.vars.get("reserve_gib") for host in inventory.hosts.values()]
    figures = [float(item) for item in given if isinstance(item, int | float)]
    return max(figures, default=float(recipe.DEFAULTS["reserve_gib"]))


def _write(root: Path, host: NewHost, lines: list[str]) -> list[str]:
    """Write the host's file, and groups.yml for a new group. If the project can't be read with them, they are undone."""
    own, groups = root / "hosts" / f"{host.name}.yml", root / "hosts/groups.yml"
    before = groups.read_text() if groups.exists() else ""
    after = files.with_groups(before, yaml.safe_load(before) or {}, host.groups)
    changed = [groups] if after != before and _is_new(before, host.groups) else []
    try:
        if changed:
            write_atomically(groups, after.encode(), mode=0o644)
        write_atomically(own, files.host_text(host, lines, "hosts.add").encode(), mode=0o644)
        Inventory.load(root)
    except BaseException as error:
        own.unlink(missing_ok=True)
        if changed and before:
            write_atomically(groups, before.encode(), mode=0o644)
        elif changed:
            groups.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise Failed(f"{error.filename}: {error.strerror}.", fix="Nothing was written.") from None
        raise
    return [f"hosts/{path.name}" for path in (own, *changed)]


def _is_new(text: str, groups: tuple[str, ...]) -> bool:
    return any(group not in (yaml.safe_load(text) or {}) for group in groups)
