"""The restart plan of a server, and everything besides its recipe that a server's plan depends on.

A plan depends on the gateways in front of the server, the machine's other servers, those that take turns with it in
the same memory, and the interim server.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from sparkwright import host_side
from sparkwright.app.connect import Selection
from sparkwright.app.plans import clusters
from sparkwright.app.plans.pins import load_lock, lock_entries, missing_pins, model_key_parts
from sparkwright.app.plans.recipes import load_host_recipe, login_user
from sparkwright.errors import Refused
from sparkwright.host.records.restart_plans import CHECK_RESULT_VARIABLE
from sparkwright.host.state import write_atomically
from sparkwright.project import gateway_routes, gateway_servers, playbook, recipe, shipped_files
from sparkwright.project.documents.document import format_path
from sparkwright.project.gateway_servers import list_gateways, load_server
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.inventory.rules import Mistake, refuse_first
from sparkwright.project.recipe.engine_settings import compute_memory
from sparkwright.trust import private

#: value of `swap` that requires an interim server
SWAP_BESIDE = "beside"
_NO_GATEWAY_REASON = "no gateway is in front of this host to send requests to an interim server"
_SWAP_FIX = "Use `swap: auto`, or add a gateway to its group (docs/gateway.md)."
RESTART_PLAYBOOK, SWITCH_PLAYBOOK = "restart", "switch"
#: variables of a restart by a health check that differ from those of `invoke restart`
HEAL_VARIABLES = {"outcome": "healed", "reason": f"{{{{ {CHECK_RESULT_VARIABLE}.why }}}}"}
HEAL_OPTIONS = playbook.Options(extra=HEAL_VARIABLES)
SWITCH_OPTIONS = playbook.Options(extra={"reason": HEAL_VARIABLES["reason"]})


def build_scope_arguments(selection: Selection, host: Host) -> dict[str, Any]:
    """Return the keyword arguments for `recipe.scope`. Raises Refused if the machine's servers conflict."""
    root, inventory = selection.project.root, selection.inventory
    return {
        "gateways": list_gateways(root, inventory, host),
        "other_servers": other_servers(selection, host),
        "turns": servers_taking_turns(root, inventory, host),
        "interim": interim_server(selection, host),
    }


def interim_server(selection: Selection, host: Host) -> dict[str, Any]:
    """Return the settings of the interim server, which serves requests while the server itself is being replaced.

    Returns:
        `port` (0 if there can be no interim server) and `alone` (True if no other host behind the gateways serves the model).

    Raises:
        Refused: the host's file requires an interim server, but there can be none.
    """
    root, inventory = selection.project.root, selection.inventory
    gateways = [gateway for gateway in inventory.gateways.values() if host.machine in gateway.members]
    if host.vars.get("swap") == SWAP_BESIDE and (host.cluster is not None or not gateways):
        reason = (
            f"{host.name} is a member of a cluster, which is replaced in place" if host.cluster else _NO_GATEWAY_REASON
        )
        raise Refused(f"`swap: beside`: {reason}.", where=host.set_at.get("vars.swap", host.where), fix=_SWAP_FIX)
    if not gateways or not host.recipe or host.cluster is not None:
        return {"port": 0, "alone": False}
    server = load_server(root, host)
    routed_servers = (
        routed for gateway in gateways for routed in gateway_routes.load_readable_servers(root, inventory, gateway)
    )
    serving_hosts = {
        routed.host.name for routed in routed_servers if routed.recipe.served_name == server.recipe.served_name
    }
    return {"port": gateway_servers.interim_port(root, inventory, server), "alone": serving_hosts <= {host.name}}


def servers_taking_turns(project: Path, inventory: Inventory, host: Host) -> list[dict[str, Any]]:
    """Return the servers that take turns with a server, including the server itself, in the order of the host's file.

    Returns:
        `name` (of the container), `host` (name of the target), `recipe` and `gateways` (in front of it) of each server; empty
        for a server that takes no turns.
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

    Returns:
        `recipe`, `name` (of the container), `on_demand`, `utilization`, `needs_bytes` and `engine_memory` of each server.

    Raises:
        Refused: two servers use the same port, or the same folder for different models.
    """
    if not host.shared_machine:
        return []
    lock = load_lock(selection.project, host)
    host_recipe, servers = load_host_recipe(selection.project, host), []
    for other in selection.inventory.servers_of(host.machine):
        if other.name == host.name:
            continue
        other_recipe = load_host_recipe(selection.project, other)
        refuse_first(_find_conflicts(host, host_recipe, other, other_recipe))
        memory = compute_memory(other_recipe, lock_entries(lock, other_recipe))
        servers.append(
            {
                "recipe": other_recipe.name,
                "name": other_recipe.file.container.name,
                "on_demand": bool(other.turns),
                "utilization": memory.share,
                "needs_bytes": memory.bytes,
                "engine_memory": memory.to_json(),
            }
        )
    return servers


def _find_conflicts(
    host: Host, host_recipe: recipe.Recipe, other: Host, other_recipe: recipe.Recipe
) -> Iterator[Mistake]:
    where = host.set_at.get("recipe", host.where)
    both_recipes = f"{host_recipe.name} and {other_recipe.name}"
    if shared_ports := sorted(_published_ports(host, host_recipe) & _published_ports(other, other_recipe)):
        port = shared_ports[0]
        free_port = port + 1 if port < 65535 else port - 1
        fix = f"Set another port in the host's file: `- {{recipe: {host_recipe.name}, port: {free_port}}}`."
        yield f"{both_recipes} both use port {port} of {host.machine}.", where, fix
    other_folders = _model_folders(other_recipe)
    for folder, model in _model_folders(host_recipe).items():
        if other_folders.get(folder, model) != model:
            roles = [role for role, second in host_recipe.file.further_models.items() if second.dir == folder]
            key_path = host_recipe.file.place_of(roles[0]) if roles else ("model", "dir")
            message = f"{both_recipes} use {folder} for different models."
            yield message, host_recipe.source.where(*key_path), "Set a different `dir` in one of them."


def _model_folders(host_recipe: recipe.Recipe) -> dict[str, tuple[str, str, str]]:
    """Return the model folders of a recipe, each with the spark.lock key of its model."""
    model = host_recipe.file.model
    second_models = {
        second.dir: model_key_parts(second, role) for role, second in host_recipe.file.further_models.items()
    }
    return {model.dir: (model.id, model.revision, model.file_key), **second_models}


def _published_ports(host: Host, host_recipe: recipe.Recipe) -> set[int]:
    """Return the machine's ports that a server uses: its API's and others that its container publishes."""
    host_ports = [text.split(":")[-2] for text in host_recipe.file.container.ports[1:] if ":" in text]
    return {recipe.serve_port(host, host_recipe), *(int(port) for port in host_ports if port.isdigit())}


# With a restart plan, a host restarts its server without a laptop. The plan is compiled from playbooks/restart.yml or, for a
# member of a cluster, from playbooks/cluster/restart.yml. If requests may wake the machine's servers, it includes the plan of a
# switch to the server, from playbooks/switch.yml. Compiling it takes longer than the rest of a deploy without changes, so the
# laptop caches each host's last restart plan with its inputs.


def attach_restart_plans(selection: Selection) -> None:
    """Set the restart plan of each selected host, to be sent with its next plan. Raises Refused, with file and line."""
    for member in selection.fleet.members:
        host_recipe = load_host_recipe(selection.project, member.host)
        pins = lock_entries(load_lock(selection.project, member.host), host_recipe)
        variables = recipe.scope(
            member.host, login_user(member.host), host_recipe, pins, **build_scope_arguments(selection, member.host)
        )
        member.restart = build_restart_plan(selection, member.host, variables)


def build_restart_plan(selection: Selection, host: Host, variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the restart plan in the format of host/records/restart_plans.py; empty if spark.lock lacks a pin.

    Args:
        variables: the variables of the host's plan.

    Raises:
        Refused: a playbook can't be compiled; with file and line.
    """
    lock = variables.get("lock") or {}
    if missing_pins(lock):
        return {}
    root = selection.project.root
    relative_path = f"{clusters.CLUSTER_FOLDER}/{RESTART_PLAYBOOK}.yml" if host.cluster else f"{RESTART_PLAYBOOK}.yml"
    path = shipped_files.resolve_path(root, f"playbooks/{relative_path}")
    can_wake = any(server.wake.on_request for server in selection.inventory.servers_of(host.machine))
    switch_path = (
        shipped_files.resolve_path(root, f"playbooks/{SWITCH_PLAYBOOK}.yml") if can_wake and host.turns else None
    )
    inputs_digest = _digest_inputs(
        root, {**variables, "cluster of the host": host.cluster, "wake": host.wake, "playbooks": (path, switch_path)}
    )
    cache_name = f"{_digest_text(str(root.resolve()))}-{host.name.replace('/', '+')}.json"
    cache_path = host_side.cache_folder() / "restart-plans" / cache_name
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        cached_entry = json.loads(cache_path.read_bytes())
        if cached_entry["inputs"] == inputs_digest and cached_entry["files"] == _digest_files(
            map(Path, cached_entry["files"])
        ):
            return dict(cached_entry["plan"])
    plays = [_select_play(selection, playbook_path, host) for playbook_path in (path, switch_path) if playbook_path]
    compile_play = partial(playbook.compile, project=root, registered={CHECK_RESULT_VARIABLE: {"why": ""}})
    plan = compile_play(plays[0], host, variables, HEAL_OPTIONS, run_id=RESTART_PLAYBOOK)
    stored_plan = {"runtime": host_side.content_hash(), "plan": clusters.add_barrier(plan, host).to_json()}
    if switch_path:
        plan = compile_play(plays[1], host, variables, SWITCH_OPTIONS, run_id=SWITCH_PLAYBOOK)
        stored_plan["wake"] = {**asdict(host.wake), "gateways": variables["host"]["gateways"], "plan": plan.to_json()}
    file_digests = _digest_files(path.resolve() for play in plays for path in play.document.paths())
    with contextlib.suppress(OSError):  # the plan is compiled again next time
        private.create_folder(cache_path.parent)
        write_atomically(
            cache_path, json.dumps({"inputs": inputs_digest, "files": file_digests, "plan": stored_plan}).encode()
        )
    return stored_plan


def _select_play(selection: Selection, path: Path, host: Host) -> playbook.Play:
    """Return the play for a host. Raises Refused unless exactly one play targets it and contains `grant_restart`."""
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
    """Return a digest of the plan's inputs except the playbooks' files: variables, templates and the program."""
    templates = _digest_files(shipped_files.list_paths(root, "templates/*"))
    project_playbooks = sorted(map(str, (root / "playbooks").glob("**/*.yml")))  # any of them may replace a shipped one
    compiler_mtimes = {
        path.name: path.stat().st_mtime_ns for path in sorted(Path(playbook.__file__).parent.glob("*.py"))
    }
    sorted_variables = {name: variables[name] for name in sorted(variables)}
    inputs = [host_side.content_hash(), compiler_mtimes, templates, project_playbooks, sorted_variables]
    return _digest_text(json.dumps(inputs, default=str))


def _digest_files(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digests of files, by path. Raises OSError."""
    return {str(path): _digest_text(path.read_text(errors="replace")) for path in paths}


def _digest_text(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
