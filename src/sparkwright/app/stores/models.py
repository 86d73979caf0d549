"""The `models.*` commands: list, verify, copy and prune models on hosts."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sparkwright import units
from sparkwright.app.connect import SelectedHosts, Selection, select_hosts, select_machines
from sparkwright.app.plans import preparation, recipes
from sparkwright.app.plans.pins import load_lock, lock_entries
from sparkwright.app.prompts import NOT_REMOVED_MESSAGE, confirm
from sparkwright.app.queries import host_requests
from sparkwright.app.queries.host_requests import query_module, run_module
from sparkwright.app.runs.presenters import RunOutput
from sparkwright.console import grid
from sparkwright.console.command_output import error_row, print_error, print_json_line, print_prose, print_text
from sparkwright.errors import Exit, Failed, Refused
from sparkwright.fleet.member import Member
from sparkwright.project import lockfile
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.protocol.plan import Plan, Task, new_run_id
from sparkwright.secret import Secret
from sparkwright.trust.secret_names import PEER_TOKEN
from sparkwright.visible import format_count, join_first, one_line

#: columns of `models.list`
LIST_COLUMNS = grid.columns(("HOST", 0), ("MODEL", 0), ("SIZE", 1), ("STATE", 0), ("USED BY", 0), ("FOLDER", 0))
#: pairs of a host's name and a row of a module's answer
Rows = list[tuple[str, dict[str, Any]]]


def query_hosts(selection: Selection, query: Callable[[Member], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the answers of the selected hosts, by host name, and print the errors of the others."""
    answers = selection.fleet.query_all(query)
    for name, error in selection.fleet.errors().items():
        print_error(error, json=False, host=name)
    return answers


def list_models(pattern: str, *, as_json: bool) -> list[int]:
    """List the models on each host, with the containers that use them."""
    selection = select_machines(select_hosts(pattern))
    answers = _query_models(selection)
    rows = [(host, model) for host in answers for model in answers[host]["models"]]
    if as_json:
        print_json_line(_rows_json(rows) + _error_rows(selection))
        return selection.fleet.exit_codes()
    grid.print_table(LIST_COLUMNS, [_model_cells(host, row) for host, row in rows])
    if not rows and len(answers) == len(selection.hosts):
        print_text("no models that sparkwright has verified.")
    return selection.fleet.exit_codes()


def _query_models(selection: Selection) -> dict[str, dict[str, Any]]:
    return query_hosts(selection, lambda member: query_module(selection.fleet, member, "models", {}))


def _rows_json(rows: Rows) -> list[dict[str, Any]]:
    return [{"host": host, **row} for host, row in rows]


def _error_rows(*selections: Selection) -> list[dict[str, Any]]:
    """Return the errors as rows of --json, one per host."""
    errors = {host: error for selection in reversed(selections) for host, error in selection.fleet.errors().items()}
    return [error_row(str(error), error.exit, host=host) for host, error in errors.items()]


def _model_cells(host: str, row: Mapping[str, Any]) -> tuple[str, ...]:
    state = f"{format_count(len(row['changed']), 'file')} changed" if row["changed"] else "complete"
    model, container_names = f"{row['id'] or '?'}@{row['commit'][:12] or '?'}", ", ".join(row["used_by"])
    return host, model, units.format_size(row["size_bytes"]), state, container_names or "unused", row["dir"]


def verify(pattern: str, *, deep: bool, as_json: bool) -> list[int]:
    """Compare each host's model with the lock. The exit code is 2 if a file is missing or changed."""
    selection = select_hosts(pattern)
    models = {host.name: locked_model(selection.project, host) for host in selection.hosts}
    further_models = {host.name: _further_models(selection.project, host) for host in selection.hosts}

    def verify_member(member: Member) -> dict[str, Any]:
        name = member.host.name
        args = {**models[name], "deep": deep, "models": further_models[name]}
        return run_module(selection.fleet, member, "verify_model", args)

    answers = query_hosts(selection, verify_member)
    if as_json:
        print_json_line(
            [{"host": host, "id": models[host]["id"], **answer} for host, answer in answers.items()]
            + _error_rows(selection)
        )
    else:
        for host, answer in answers.items():
            method = "all files read again" if deep else "unchanged since they were verified"
            summary = f"complete: {answer['files']} files, {units.format_size(answer['size_bytes'])}, {method}"
            message = f"wrong: {join_first(answer['wrong'], 3)}" if answer["wrong"] else summary
            print_prose(one_line(f"{host:<12} {models[host]['id']}  {message}"))
    return [*selection.fleet.exit_codes(), *(Exit.CHANGES for answer in answers.values() if answer["wrong"])]


def copy(source_pattern: str, pattern: str, *, check: bool, as_json: bool) -> list[int]:
    """Copy the locked model of each host's recipe from a host that has it, without contacting the hub."""
    selection = select_hosts(pattern)
    source_machine = preparation.select_source_host(selection.inventory, source_pattern)
    selection.fleet.members = [
        member for member in selection.fleet.members if member.host.machine != source_machine.name
    ]
    targets = [member.host for member in selection.fleet.members]
    if not targets:
        raise Refused(f"--to names no host except {source_machine.name}.", fix="Name the hosts that need the model.")
    models = {host.name: locked_model(selection.project, host) for host in targets}
    selection.fleet.connect()
    peers = preparation.Peers(selection.inventory)
    RunOutput(SelectedHosts(selection.project, targets, selection.fleet), json=as_json, diff=False)
    try:
        selection.fleet.wait_for_connections()
        # for an unreachable host, the source would wait hours
        members = [member for member in selection.fleet.members if not member.failed]
        models_to_serve = {member.host.name: models[member.host.name] for member in members}
        urls_by_model, tokens_by_model = _serve_models(peers, source_machine, models_to_serve, check=check)

        def copy_to(member: Member) -> None:
            model = models[member.host.name]
            key = (model["id"], model["commit"])
            member.secrets = {PEER_TOKEN: tokens_by_model[key]}
            args = {**model, "from": source_machine.name, "peer": urls_by_model[key]}
            name = f"Copy {model['id']} from {source_machine.name}"
            task = Task(id="copy", name=name, module=preparation.MODEL_MODULE, args=args)
            plan = Plan(run_id=new_run_id(), host=member.host.name, play="Copy", steps=(task,), check=check)
            selection.fleet.request(member, {"verb": "run", "plan": plan.to_json()})

        selection.fleet.run_parallel(members, copy_to)
    finally:
        peers.close()
        selection.fleet.close()
    return selection.fleet.exit_codes()


def _serve_models(
    peers: preparation.Peers, source_machine: Host, models: Mapping[str, Mapping[str, Any]], *, check: bool
) -> tuple[dict[tuple[str, str], list[str]], dict[tuple[str, str], Any]]:
    """Serve each model once for all hosts that need it. Returns the URLs and the tokens, by (id, commit)."""
    urls_by_model: dict[tuple[str, str], list[str]] = {}
    tokens_by_model: dict[tuple[str, str], Any] = {}
    for model in models.values():
        key = (model["id"], model["commit"])
        if key not in urls_by_model:
            reader_count = sum(1 for other in models.values() if (other["id"], other["commit"]) == key)
            tokens_by_model[key] = Secret(secrets.token_urlsafe(32))
            urls_by_model[key] = (
                []
                if check
                else peers.serve_model(source_machine.name, model, tokens_by_model[key], reader_count=reader_count)
            )
    return urls_by_model, tokens_by_model


def prune(pattern: str, *, yes: bool, as_json: bool) -> list[int]:
    """Show the unused models, ask for confirmation, and remove them.

    A model that a container mounts or a recipe names is never removed.
    """
    selection = select_machines(select_hosts(pattern))
    folders_by_host = {host.name: _recipe_folders(selection, host) for host in selection.hosts}
    rows = [
        (host, model)
        for host, answer in _query_models(selection).items()
        for model in answer["models"]
        if not model["used_by"] and not any(_is_recipe_folder(model["dir"], folder) for folder in folders_by_host[host])
    ]
    if not as_json:
        for host, row in rows:
            print_prose(
                one_line(f"{host:<12} {row['id'] or '?'}  {units.format_size(row['size_bytes']):>9}  {row['dir']}")
            )
        total = sum(row["size_bytes"] for _, row in rows)
        print_text(f"{units.format_size(total)} can be freed." if rows else "nothing to free.")
    if rows and not confirm(f"Remove {format_count(len(rows), 'model')}?", yes=yes):
        print_text(NOT_REMOVED_MESSAGE, file=sys.stderr)
        if as_json:
            print_json_line(_rows_json(rows) + _error_rows(selection))
        return [*selection.fleet.exit_codes(), Exit.CHANGES]
    new_selection = select_machines(select_hosts(pattern))
    removed_rows = _remove_models(new_selection, rows) if rows else []
    if as_json:
        print_json_line(_rows_json(removed_rows) + _error_rows(selection, new_selection))
    for host, row in [] if as_json else removed_rows:
        print_text(one_line(f"{host:<12} {row['dir']}: {units.format_size(row['freed_bytes'])} freed"))
    return [*selection.fleet.exit_codes(), *new_selection.fleet.exit_codes()]


def locked_model(project: Project, host: Host) -> dict[str, Any]:
    """Return the id, commit, files and dir of a host's model, from its recipe and the lock. Raises Failed if it is not pinned."""
    model = recipes.load_host_recipe(project, host).file.model
    entry = load_lock(project, host).model(model.id, model.revision, model.file_key)
    if entry is None:
        fix = f"Pin it with `invoke lock --host {host.name}`."
        raise Failed(
            f"spark.lock has no entry for {lockfile.model_key(model.id, model.revision, model.file_key)}.", fix=fix
        )
    return {"id": model.id, "commit": entry["commit"], "files": entry["files"], "dir": model.dir}


def _further_models(project: Project, host: Host) -> list[dict[str, Any]]:
    """Return the second models of a host's recipe that are in the lock, as an argument of `verify_model`."""
    host_recipe = recipes.load_host_recipe(project, host)
    pins = lock_entries(load_lock(project, host), host_recipe).get("models") or {}
    models = host_recipe.file.further_models
    return [
        {
            "role": role,
            "id": models[role].id,
            "commit": entry["commit"],
            "files": entry["files"],
            "dir": models[role].dir,
        }
        for role, entry in pins.items()
        if entry
    ]


def _recipe_folders(selection: Selection, machine: Host) -> list[str]:
    """Return the model folders that the recipes of a machine name."""
    hosts = [host for host in selection.inventory.servers_of(machine.name) if host.recipe]
    files = [recipes.load_host_recipe(selection.project, host).file for host in hosts]
    return [model.dir for file in files for model in (file.model, *file.further_models.values())]


def _is_recipe_folder(folder: str, recipe_folder: str) -> bool:
    """Return True if the recipe names this folder. `~` matches any home folder, because the login user's may be unknown here."""
    return folder.endswith(recipe_folder[1:]) if recipe_folder.startswith("~/") else folder == recipe_folder


def _remove_models(selection: Selection, rows: Rows) -> Rows:
    """Remove the models on all hosts in parallel. Each host checks again before it removes a model."""
    removed_rows: Rows = []

    def remove_on(member: Member) -> None:
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
                removal = host_requests.validate_answer("remove_model", event["data"], host=member.host.name)
                removed_rows.append((member.host.name, {key: removal[key] for key in ("dir", "freed_bytes", "left")}))

    selection.fleet.query_all(remove_on)
    for name, error in selection.fleet.errors().items():
        print_prose(f"{name}: {error.message}", file=sys.stderr)
    return removed_rows
