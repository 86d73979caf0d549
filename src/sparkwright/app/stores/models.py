"""The `models.*` commands: list, verify, copy and prune models on hosts."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sparkwright import units
from sparkwright.app.connect import SelectedHosts, Selection, choose, machines
from sparkwright.app.plans import preparation, recipes
from sparkwright.app.plans.pins import entries, lock_of
from sparkwright.app.prompts import agreed
from sparkwright.app.questions import host_requests
from sparkwright.app.questions.host_requests import ask_module, run_module
from sparkwright.app.runs.presenters import Shown
from sparkwright.console import grid
from sparkwright.console.out import error_row, say, say_error, say_json, say_prose
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.fleet.member import Member
from sparkwright.project import lockfile
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.plan import Plan, Task, new_run_id
from sparkwright.secret import Secret
from sparkwright.visible import count, first, one_line

#: columns of `models.list`
LISTED = grid.columns(("HOST", 0), ("MODEL", 0), ("SIZE", 1), ("STATE", 0), ("USED BY", 0), ("FOLDER", 0))
Rows = list[tuple[str, dict[str, Any]]]


def ask(selection: Selection, answer_of: Callable[[Member], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the answers of the selected hosts, by host name. The errors of hosts that can't answer are printed."""
    found = selection.fleet.ask(answer_of)
    for name, error in selection.fleet.errors().items():
        say_error(error, json=False, host=name)
    return found


def list_models(pattern: str, *, as_json: bool) -> list[int]:
    """List every model of every host, with its users."""
    selection = machines(choose(pattern))
    found = _models(selection)
    rows = [(host, model) for host in found for model in found[host]["models"]]
    if as_json:
        say_json(_objects(rows) + _errors(selection))
        return selection.fleet.codes()
    grid.show_plain_table(LISTED, [_cells(host, row) for host, row in rows])
    if not rows and len(found) == len(selection.hosts):
        say("no models that sparkwright has verified.")
    return selection.fleet.codes()


def _models(selection: Selection) -> dict[str, dict[str, Any]]:
    return ask(selection, lambda member: ask_module(selection.fleet, member, "models", {}))


def _objects(rows: Rows) -> list[dict[str, Any]]:
    return [{"host": host, **row} for host, row in rows]


def _errors(*selections: Selection) -> list[dict[str, Any]]:
    """Return the errors in the form of --json, one per host."""
    found = {host: error for selection in reversed(selections) for host, error in selection.fleet.errors().items()}
    return [error_row(str(error), error.exit, host=host) for host, error in found.items()]


def _cells(host: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a model in the columns `LISTED`."""
    state = f"{count(len(row['changed']), 'file')} changed" if row["changed"] else "whole"
    model, used = f"{row['id'] or '?'}@{row['commit'][:12] or '?'}", ", ".join(row["used_by"])
    return host, model, units.size(row["size_bytes"]), state, used or "unused", row["dir"]


def verify(pattern: str, *, deep: bool, as_json: bool) -> list[int]:
    """Compare each host's model with the lock. The exit code is 2 if a file is missing or changed."""
    selection = choose(pattern)
    models = {host.name: locked_model(selection.project, host) for host in selection.hosts}
    further = {host.name: _further(selection.project, host) for host in selection.hosts}

    def compared(member: Member) -> dict[str, Any]:
        name = member.host.name
        args = {**models[name], "deep": deep, "models": further[name]}
        return run_module(selection.fleet, member, "verify_model", args)

    found = ask(selection, compared)
    if as_json:
        say_json(
            [{"host": host, "id": models[host]["id"], **value} for host, value in found.items()] + _errors(selection)
        )
    else:
        for host, value in found.items():
            how = "every byte read again" if deep else "as verified"
            summary = f"whole: {value['files']} files, {units.size(value['size_bytes'])}, {how}"
            message = f"wrong: {first(value['wrong'], 3)}" if value["wrong"] else summary
            say(one_line(f"{host:<12} {models[host]['id']}  {message}"))
    return [*selection.fleet.codes(), *(Exit.CHANGES for row in found.values() if row["wrong"])]


def copy(source: str, pattern: str, *, check: bool, as_json: bool) -> list[int]:
    """Copy the locked model of each host's recipe from a host that has it, without contacting the hub."""
    selection = choose(pattern)
    giver = preparation.source_host(selection.inventory, source)
    selection.fleet.members = [member for member in selection.fleet.members if member.host.machine != giver.name]
    takers = [member.host for member in selection.fleet.members]
    if not takers:
        raise Refused(f"--to names no host except {giver.name}.", fix="Name the hosts that need the model.")
    models = {host.name: locked_model(selection.project, host) for host in takers}
    selection.fleet.connect()
    message = preparation.Peers(selection.inventory)
    Shown(SelectedHosts(selection.project, takers, selection.fleet), json=as_json, diff=False)
    try:
        urls, tokens = _handed_out(message, giver, models, check=check)

        def one(member: Member) -> None:
            model = models[member.host.name]
            key = (model["id"], model["commit"])
            member.secrets = {preparation.TOKEN: tokens[key]}
            args = {**model, "from": giver.name, "peer": urls[key]}
            name = f"Copy {model['id']} from {giver.name}"
            task = Task(id="copy", name=name, module=preparation.MODULE, args=args)
            plan = Plan(run_id=new_run_id(), host=member.host.name, play="Copy", steps=(task,), check=check)
            selection.fleet.request(member, {"verb": "run", "plan": plan.to_json()})

        selection.fleet.each(selection.fleet.members, one)
    finally:
        message.close()
        selection.fleet.close()
    return selection.fleet.codes()


def _handed_out(
    message: preparation.Peers, giver: Host, models: Mapping[str, Mapping[str, Any]], *, check: bool
) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], Any]]:
    """Have each needed model handed out once, for all hosts that need it."""
    urls: dict[tuple[str, str], list[str]] = {}
    tokens: dict[tuple[str, str], Any] = {}
    for model in models.values():
        key = (model["id"], model["commit"])
        if key not in urls:
            readers = sum(1 for other in models.values() if (other["id"], other["commit"]) == key)
            tokens[key] = Secret(secrets.token_urlsafe(32))
            urls[key] = [] if check else message.hand_out(giver.name, model, tokens[key], readers=readers)
    return urls, tokens


def prune(pattern: str, *, yes: bool, as_json: bool) -> list[int]:
    """Show the unused models, ask for confirmation, and remove them.

    A model that a container mounts or a recipe names is never removed.
    """
    selection = machines(choose(pattern))
    own = {host.name: _folders(selection, host) for host in selection.hosts}
    rows = [
        (host, model)
        for host, found in _models(selection).items()
        for model in found["models"]
        if not model["used_by"] and not any(_is_kept(model["dir"], folder) for folder in own[host])
    ]
    if not as_json:
        for host, row in rows:
            say(one_line(f"{host:<12} {row['id'] or '?'}  {units.size(row['size_bytes']):>9}  {row['dir']}"))
        total = sum(row["size_bytes"] for _, row in rows)
        say(f"{units.size(total)} can be freed." if rows else "nothing to free.")
    if rows and not agreed(f"Remove {len(rows)} models?", yes=yes):
        say("nothing was removed.", file=sys.stderr)
        if as_json:
            say_json(_objects(rows) + _errors(selection))
        return [*selection.fleet.codes(), Exit.CHANGES]
    again = machines(choose(pattern))
    done = _removed(again, rows) if rows else []
    if as_json:
        say_json(_objects(done) + _errors(selection, again))
    for host, value in [] if as_json else done:
        say(one_line(f"{host:<12} {value['dir']}: {units.size(value['freed_bytes'])} freed"))
    return [*selection.fleet.codes(), *again.fleet.codes()]


def locked_model(project: Project, host: Host) -> dict[str, Any]:
    """Return the id, commit, files and dir of a host's model, from its recipe and the lock. Raises Failed and Refused."""
    wanted = recipes.recipe_of(project, host).file.model
    entry = lock_of(project, host).model(wanted.id, wanted.revision, wanted.chosen)
    if entry is None:
        fix = f"`invoke deploy --host {host.name}` pins it (or the host that has it)."
        raise Failed(
            f"spark.lock has no entry for {lockfile.model_key(wanted.id, wanted.revision, wanted.chosen)}.", fix=fix
        )
    return {"id": wanted.id, "commit": entry["commit"], "files": entry["files"], "dir": wanted.dir}


def _further(project: Project, host: Host) -> list[dict[str, Any]]:
    """Return the second models of a host's recipe that are in the lock, as `verify_model` takes them."""
    wanted = recipes.recipe_of(project, host)
    known = entries(lock_of(project, host), wanted).get("models") or {}
    models = wanted.file.further
    return [
        {
            "role": role,
            "id": models[role].id,
            "commit": entry["commit"],
            "files": entry["files"],
            "dir": models[role].dir,
        }
        for role, entry in known.items()
        if entry
    ]


def _folders(selection: Selection, machine: Host) -> list[str]:
    """Return the model folders that the recipes of a machine name."""
    hosts = [host for host in selection.inventory.servers_of(machine.name) if host.recipe]
    files = [recipes.recipe_of(selection.project, host).file for host in hosts]
    return [model.dir for file in files for model in (file.model, *file.further.values())]


def _is_kept(folder: str, own: str) -> bool:
    """Return True if the recipe names this folder. `~` stands for any home, because the laptop may not know the login's."""
    return folder.endswith(own[1:]) if own.startswith("~/") else folder == own


def _removed(selection: Selection, rows: Rows) -> Rows:
    """Remove the models on all hosts in parallel. Each host checks again before it removes one."""
    done: Rows = []

    def one(member: Member) -> None:
        tasks = tuple(
            Task(id=f"r{n}", name=f"Remove {row['dir']}", module="remove_model", args={"dir": row["dir"]})
            for n, (host, row) in enumerate(rows)
            if host == member.host.name
        )
        if not tasks:
            return
        plan = Plan(run_id=new_run_id(), host=member.host.name, play="Prune", steps=tasks)
        for event in selection.fleet.request(member, {"verb": "run", "plan": plan.to_json()}):
            if event["event"] == "task_finished" and event["status"] == "changed":
                removed = host_requests.checked("remove_model", event["data"], host=member.host.name)
                done.append((member.host.name, {key: removed[key] for key in ("dir", "freed_bytes", "left")}))

    selection.fleet.ask(one)
    for name, error in selection.fleet.errors().items():
        say_prose(f"{name}: {error.message}", file=sys.stderr)
    return done
