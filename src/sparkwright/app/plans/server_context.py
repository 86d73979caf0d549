"""Everything that a server's plan depends on in addition to its own recipe.

These are the gateways in front of it, the other servers of its machine, the servers that take turns in its memory, and an
interim server.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkwright import host_side
from sparkwright.app.connect import Selection
from sparkwright.app.plans import clusters
from sparkwright.app.plans.pins import load_lock, lock_entries, missing_pins
from sparkwright.app.plans.recipes import load_host_recipe, login_user
from sparkwright.errors import Refused
from sparkwright.host.records.restart_plans import CHECK_RESULT
from sparkwright.host.state import write_atomically
from sparkwright.project import gateway_routes, gateway_servers, playbook, recipe, shipped_files
from sparkwright.project.documents.document import format_path
from sparkwright.project.gateway_servers import list_gateways, load_server
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.inventory.rules import Mistake
from sparkwright.project.recipe.engine_settings import compute_memory
from sparkwright.trust import private


def build_scope_arguments(selection: Selection, host: Host) -> dict[str, Any]:
    """Return the gateways, other servers, turns and interim server, as `recipe.scope` takes them.

    Raises Refused if the servers of a machine conflict.
    """
    root, inventory = selection.project.root, selection.inventory
    gateways = list_gateways(root, inventory, host)
    machine_servers = {
        "other_servers": other_servers(selection, host),
        "turns": servers_taking_turns(root, inventory, host),
    }
    return {"gateways": gateways, **machine_servers, "interim": interim_server(selection, host)}


SWAP_BESIDE = "beside"


def interim_server(selection: Selection, host: Host) -> dict[str, Any]:
    """Return `port` and `alone` of the interim server.

    `port` is 0 if there can be no interim server. `alone` is True if no other host behind a gateway serves the model.

    Raises Refused, with the line, for `swap: beside` if no gateway would send requests to it.
    """
    root, inventory = selection.project.root, selection.inventory
    gateways = [gateway for gateway in inventory.gateways.values() if host.machine in gateway.members]
    if host.vars.get("swap") == SWAP_BESIDE and (host.cluster is not None or not gateways):
        reason = f"{host.name} is a member of a cluster, which is replaced in place" if host.cluster else _NO_GATEWAY
        raise Refused(f"`swap: beside`: {reason}.", where=host.set_at.get("vars.swap", host.where), fix=_SWAP_FIX)
    if not gateways or not host.recipe or host.cluster is not None:
        return {"port": 0, "alone": False}
    own_server = load_server(root, host)
    others = (
        server for gateway in gateways for server in gateway_routes.load_readable_servers(root, inventory, gateway)
    )
    serving_hosts = {other.host.name for other in others if other.recipe.served_name == own_server.recipe.served_name}
    return {"port": gateway_servers.interim_port(root, inventory, own_server), "alone": serving_hosts <= {host.name}}


_NO_GATEWAY = "no gateway is in front of this host, to send requests to a second server"
_SWAP_FIX = "Write `swap: auto`, or give its group a gateway (docs/gateway.md)."


def servers_taking_turns(project: Path, inventory: Inventory, host: Host) -> list[dict[str, Any]]:
    """Return the servers that take turns with a server, including itself, as they are listed.

    Each has name (of the container), host (name of its target), recipe and gateways (those in front of it). The list is empty
    for a server that is always on.
    """
    if not host.turns:
        return []
    return [
        {
            "name": server.server,
            "host": server.name,
            "recipe": server.recipe,
            "gateways": list_gateways(project, inventory, server),
        }
        for server in inventory.servers_of(host.machine)
        if server.server in host.turns
    ]


def other_servers(selection: Selection, host: Host) -> list[dict[str, Any]]:
    """Return the other servers of a host's machine.

    Each has recipe, name (of the container), on_demand, utilization, needs_bytes and engine_memory.

    Raises Refused, with file and line, if two need the same port or different files in the same folder.
    """
    if not host.on:
        return []
    lock = load_lock(selection.project, host)
    own_recipe, servers = _load_recipe(selection, host), []
    for other in selection.inventory.servers_of(host.machine):
        if other.name == host.name:
            continue
        other_recipe = _load_recipe(selection, other)
        for message, where, fix in _find_conflicts(host, own_recipe, other, other_recipe):
            raise Refused(message, where=where, fix=fix)
        memory = compute_memory(other_recipe, lock_entries(lock, other_recipe))
        server_fields = {
            "recipe": other_recipe.name,
            "name": other_recipe.file.container.name,
            "on_demand": bool(other.turns),
        }
        servers.append(
            {
                **server_fields,
                "utilization": memory.share,
                "needs_bytes": memory.bytes,
                "engine_memory": memory.to_json(),
            }
        )
    return servers


def _load_recipe(selection: Selection, host: Host) -> recipe.Recipe:
    return recipe.load(selection.project.root, str(host.recipe), named_at=host.set_at.get("recipe", ""))


def _find_conflicts(
    host: Host, own_recipe: recipe.Recipe, other: Host, other_recipe: recipe.Recipe
) -> Iterator[Mistake]:
    where = host.set_at.get("recipe", host.where)
    names = f"{own_recipe.name} and {other_recipe.name}"
    if shared_ports := sorted(_published_ports(host, own_recipe) & _published_ports(other, other_recipe)):
        fix = (
            f"Publish one elsewhere: `- {{recipe: {own_recipe.name}, port: {_suggest_port(shared_ports[0])}}}` in the "
            "host's list."
        )
        yield f"{names} both want port {shared_ports[0]} of {host.machine}.", where, fix
    other_folders = _model_folders(other_recipe)
    for folder, model in _model_folders(own_recipe).items():
        if other_folders.get(folder, model) != model:
            roles = [
                role for role, second_model in own_recipe.file.further_models.items() if second_model.dir == folder
            ]
            place = own_recipe.file.place_of(roles[0]) if roles else ("model", "dir")
            yield (
                f"{names} keep different models in {folder}.",
                own_recipe.source.where(*place),
                "Give one another `dir`.",
            )


def _model_folders(host_recipe: recipe.Recipe) -> dict[str, tuple[str, str, str]]:
    """Return the id, revision and file choice of the model in each model folder of a recipe."""
    model = host_recipe.file.model
    further_folders = {
        second_model.dir: (second_model.id, second_model.revision, second_model.lock_suffix(role))
        for role, second_model in host_recipe.file.further_models.items()
    }
    return {model.dir: (model.id, model.revision, model.file_key), **further_folders}


def _published_ports(host: Host, host_recipe: recipe.Recipe) -> set[int]:
    """Return every port of the machine that a server occupies: its own port, and others that its container publishes."""
    mappings = [text.split(":")[-2] for text in host_recipe.file.container.ports[1:] if ":" in text]
    return {recipe.serve_port(host, host_recipe), *(int(port) for port in mappings if port.isdigit())}


def _suggest_port(port: int) -> int:
    return port + 1 if port < 65535 else port - 1


# The plan by which a host restarts its server without a laptop.
#
# It is compiled from playbooks/restart.yml, or for a member of a cluster from playbooks/cluster/restart.yml. For a
# server on demand that a request may wake, or that another may replace, the plan of a switch to it is compiled
# from playbooks/switch.yml too. Compiling takes longer than the rest of a deploy without changes, so the laptop keeps
# the last plans of each host with their inputs.

RESTART_PLAYBOOK, SWITCH_PLAYBOOK = "restart", "switch"
#: variables of a restart by a health check; everything else is the same as in `invoke restart`
HEAL_VARIABLES = {"outcome": "healed", "reason": f"{{{{ {CHECK_RESULT}.why }}}}"}
HEAL_OPTIONS = playbook.Options(extra=HEAL_VARIABLES)
SWITCH_OPTIONS = playbook.Options(extra={"reason": HEAL_VARIABLES["reason"]})


def attach_restart_plans(selection: Selection) -> None:
    """Attach the restart plan to the next request of each selected host. Raises Refused, with file and line."""
    for member in selection.fleet.members:
        host_recipe = load_host_recipe(selection.project, member.host)
        pins = lock_entries(load_lock(selection.project, member.host), host_recipe)
        variables = recipe.scope(
            member.host, login_user(member.host), host_recipe, pins, **build_scope_arguments(selection, member.host)
        )
        member.restart = build_restart_plan(selection, member.host, variables)


def build_restart_plan(selection: Selection, host: Host, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan as the host stores it (host/records/restart_plans.py); empty if spark.lock lacks a pin.

    Args:
        variables: the variables of the host's plan.

    Raises:
        Refused: with file and line.
    """
    lock = variables.get("lock") or {}
    if missing_pins(lock):
        return {}
    root = selection.project.root
    relative_path = f"{clusters.FOLDER}/{RESTART_PLAYBOOK}.yml" if host.cluster else f"{RESTART_PLAYBOOK}.yml"
    path = shipped_files.resolve_path(root, f"playbooks/{relative_path}")
    can_wake = any(server.wake.on_request for server in selection.inventory.servers_of(host.machine))
    switch_path = (
        shipped_files.resolve_path(root, f"playbooks/{SWITCH_PLAYBOOK}.yml") if can_wake and host.turns else None
    )
    inputs_digest = _digest_inputs(
        root, {**variables, "cluster of the host": host.cluster, "wake": host.wake, "of": (path, switch_path)}
    )
    cache_path = (
        host_side.cache_folder()
        / "restart-plans"
        / f"{_digest(str(root.resolve()))}-{host.name.replace('/', '+')}.json"
    )
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        cached = json.loads(cache_path.read_bytes())
        if cached["about"] == inputs_digest and cached["files"] == _digests(map(Path, cached["files"])):
            return dict(cached["given"])
    plays = [_select_play(selection, book, host) for book in (path, switch_path) if book]
    options: dict[str, Any] = {"project": root, "registered": {CHECK_RESULT: {"why": ""}}}
    plan = playbook.compile(plays[0], host, variables, HEAL_OPTIONS, run_id=RESTART_PLAYBOOK, **options)
    stored_plan = {"runtime": host_side.content_hash(), "plan": clusters.add_barrier(plan, host).to_json()}
    if switch_path:
        plan = playbook.compile(plays[1], host, variables, SWITCH_OPTIONS, run_id=SWITCH_PLAYBOOK, **options)
        stored_plan["wake"] = {**asdict(host.wake), "gateways": variables["host"]["gateways"], "plan": plan.to_json()}
    files = _digests(path.resolve() for play in plays for path in play.document.paths())
    with contextlib.suppress(OSError):  # without the file it is compiled again
        private.create_folder(cache_path.parent)
        write_atomically(
            cache_path, json.dumps({"about": inputs_digest, "files": files, "given": stored_plan}).encode()
        )
    return stored_plan


def _select_play(selection: Selection, path: Path, host: Host) -> playbook.Play:
    """Return the one play that restarts this host. Raises Refused if there is not exactly one."""
    plays = [
        play
        for play in playbook.load(path, selection.project.root).plays
        if host in selection.inventory.match(play.hosts)
    ]
    if len(plays) != 1 or not plays[0].has_task("grant_restart"):
        message = f"{host.name} needs exactly one play that restarts and verifies it (`grant_restart`)"
        raise Refused(f"{message}.", where=format_path(path), fix=f"Compare it with the shipped playbooks/{path.name}.")
    return plays[0]


def _digest_inputs(root: Path, variables: Mapping[str, Any]) -> str:
    """Return a digest of the plan's inputs other than the playbook's files: its templates, its variables, and the program."""
    templates = _digests(shipped_files.list_paths(root, "templates/*"))
    own_playbooks = sorted(map(str, (root / "playbooks").glob("**/*.yml")))  # each may replace a shipped one
    compiler = {item.name: item.stat().st_mtime_ns for item in sorted(Path(playbook.__file__).parent.glob("*.py"))}
    inputs = [
        host_side.content_hash(),
        compiler,
        templates,
        own_playbooks,
        {name: variables[name] for name in sorted(variables)},
    ]
    return _digest(json.dumps(inputs, default=str))


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digests of files, by path. Raises OSError."""
    return {str(path): _digest(path.read_text(errors="replace")) for path in paths}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
