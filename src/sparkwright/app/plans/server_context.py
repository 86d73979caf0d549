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
from sparkwright.app.plans.pins import entries, lock_of, not_pinned
from sparkwright.app.plans.recipes import recipe_of, user_of
from sparkwright.errors import Refused
from sparkwright.host.records.restart_plans import CHECK
from sparkwright.host.state import write_atomically
from sparkwright.project import gateway_routes, gateway_servers, playbook, recipe, shipped_files
from sparkwright.project.documents.document import shown
from sparkwright.project.gateway_servers import in_front_of, load
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.inventory.rules import Mistake
from sparkwright.project.recipe.engine_settings import served_memory
from sparkwright.trust import private


def of(selection: Selection, host: Host) -> dict[str, Any]:
    """Return the gateways, other servers, turns and interim server, as `recipe.scope` takes them.

    Raises Refused if the servers of a machine conflict.
    """
    root, inventory = selection.project.root, selection.inventory
    gateways = in_front_of(root, inventory, host)
    others = {"other_servers": other_servers_of(selection, host), "turns": turns_of(root, inventory, host)}
    return {"gateways": gateways, **others, "interim": interim_of(selection, host)}


BESIDE = "beside"


def interim_of(selection: Selection, host: Host) -> dict[str, Any]:
    """Return `port` and `alone` of the interim server.

    `port` is 0 if there can be no interim server. `alone` is True if no other host behind a gateway serves the model.

    Raises Refused, with the line, for `swap: beside` if no gateway would send requests to it.
    """
    root, inventory = selection.project.root, selection.inventory
    gateways = [gateway for gateway in inventory.gateways.values() if host.machine in gateway.members]
    if host.vars.get("swap") == BESIDE and (host.cluster is not None or not gateways):
        why = f"{host.name} is a member of a cluster, which is replaced in place" if host.cluster else _NOBODY
        raise Refused(f"`swap: beside`: {why}.", where=host.set_at.get("vars.swap", host.where), fix=_FIX)
    if not gateways or not host.recipe or host.cluster is not None:
        return {"port": 0, "alone": False}
    wanted = load(root, host)
    others = (server for gateway in gateways for server in gateway_routes.readable(root, inventory, gateway))
    same = {other.host.name for other in others if other.recipe.served_name == wanted.recipe.served_name}
    return {"port": gateway_servers.port(root, inventory, wanted), "alone": same <= {host.name}}


_NOBODY = "no gateway is in front of this host, to send requests to a second server"
_FIX = "Write `swap: auto`, or give its group a gateway (docs/gateway.md)."


def turns_of(project: Path, inventory: Inventory, host: Host) -> list[dict[str, Any]]:
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
            "gateways": in_front_of(project, inventory, server),
        }
        for server in inventory.servers_of(host.machine)
        if server.server in host.turns
    ]


def other_servers_of(selection: Selection, host: Host) -> list[dict[str, Any]]:
    """Return the other servers of a host's machine.

    Each has recipe, name (of the container), on_demand, utilization, needs_bytes and engine_memory.

    Raises Refused, with file and line, if two need the same port or different files in the same folder.
    """
    if not host.on:
        return []
    lock = lock_of(selection.project, host)
    mine, found = _recipe(selection, host), []
    for other in selection.inventory.servers_of(host.machine):
        if other.name == host.name:
            continue
        wanted = _recipe(selection, other)
        for message, where, fix in _mistakes(host, mine, other, wanted):
            raise Refused(message, where=where, fix=fix)
        memory = served_memory(wanted, entries(lock, wanted))
        about = {"recipe": wanted.name, "name": wanted.file.container.name, "on_demand": bool(other.turns)}
        found.append(
            {**about, "utilization": memory.share, "needs_bytes": memory.bytes, "engine_memory": memory.to_json()}
        )
    return found


def _recipe(selection: Selection, host: Host) -> recipe.Recipe:
    return recipe.load(selection.project.root, str(host.recipe), named_at=host.set_at.get("recipe", ""))


def _mistakes(host: Host, mine: recipe.Recipe, other: Host, wanted: recipe.Recipe) -> Iterator[Mistake]:
    where = host.set_at.get("recipe", host.where)
    both = f"{mine.name} and {wanted.name}"
    if same := sorted(_ports(host, mine) & _ports(other, wanted)):
        fix = f"Publish one elsewhere: `- {{recipe: {mine.name}, port: {_free(same[0])}}}` in the host's list."
        yield f"{both} both want port {same[0]} of {host.machine}.", where, fix
    theirs = _folders(wanted)
    for folder, model in _folders(mine).items():
        if theirs.get(folder, model) != model:
            roles = [role for role, second_model in mine.file.further.items() if second_model.dir == folder]
            place = mine.file.place_of(roles[0]) if roles else ("model", "dir")
            yield (
                f"{both} keep different models in {folder}.",
                mine.source.where(*place),
                "Give one another `dir`.",
            )


def _folders(wanted: recipe.Recipe) -> dict[str, tuple[str, str, str]]:
    """Return the id, revision and file choice of the model in each model folder of a recipe."""
    model = wanted.file.model
    found = {
        second_model.dir: (second_model.id, second_model.revision, second_model.chosen(role))
        for role, second_model in wanted.file.further.items()
    }
    return {model.dir: (model.id, model.revision, model.chosen), **found}


def _ports(host: Host, wanted: recipe.Recipe) -> set[int]:
    """Return every port of the machine that a server occupies: its own port, and others that its container publishes."""
    others = [text.split(":")[-2] for text in wanted.file.container.ports[1:] if ":" in text]
    return {recipe.serve_port(host, wanted), *(int(port) for port in others if port.isdigit())}


def _free(port: int) -> int:
    return port + 1 if port < 65535 else port - 1


# The plan by which a host restarts its server without a laptop.
#
# It is compiled from playbooks/restart.yml, or for a member of a cluster from playbooks/cluster/restart.yml. For a
# server on demand that a request may wake, or that another may replace, the plan of a switch to it is compiled
# from playbooks/switch.yml too. Compiling takes longer than the rest of a deploy without changes, so the laptop keeps
# the last plans of each host with their inputs.

NAME, SWITCH = "restart", "switch"
#: variables of a restart by a health check; everything else is the same as in `invoke restart`
HEALING = {"outcome": "healed", "reason": f"{{{{ {CHECK}.why }}}}"}
OPTIONS = playbook.Options(extra=HEALING)
SWITCHING = playbook.Options(extra={"reason": HEALING["reason"]})


def give(selection: Selection) -> None:
    """Attach the restart plan to the next request of each selected host. Raises Refused, with file and line."""
    for member in selection.fleet.members:
        wanted = recipe_of(selection.project, member.host)
        known = entries(lock_of(selection.project, member.host), wanted)
        names = recipe.scope(member.host, user_of(member.host), wanted, known, **of(selection, member.host))
        member.restart = restart_plan(selection, member.host, names)


def restart_plan(selection: Selection, host: Host, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan as the host stores it (host/records/restart_plans.py); empty if spark.lock lacks a pin.

    Args:
        names: the variables of the host's plan.

    Raises:
        Refused: with file and line.
    """
    lock = names.get("lock") or {}
    if not_pinned(lock):
        return {}
    root = selection.project.root
    below = f"{clusters.FOLDER}/{NAME}.yml" if host.cluster else f"{NAME}.yml"
    path = shipped_files.path_of(root, f"playbooks/{below}")
    wakes = any(server.wake.on_request for server in selection.inventory.servers_of(host.machine))
    switch = shipped_files.path_of(root, f"playbooks/{SWITCH}.yml") if wakes and host.turns else None
    about = _about(root, {**names, "cluster of the host": host.cluster, "wake": host.wake, "of": (path, switch)})
    kept = host_side.cache() / "restart-plans" / f"{_digest(str(root.resolve()))}-{host.name.replace('/', '+')}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        found = json.loads(kept.read_bytes())
        if found["about"] == about and found["files"] == _digests(map(Path, found["files"])):
            return dict(found["given"])
    plays = [_play(selection, book, host) for book in (path, switch) if book]
    options: dict[str, Any] = {"project": root, "registered": {CHECK: {"why": ""}}}
    plan = playbook.compile(plays[0], host, names, OPTIONS, run_id=NAME, **options)
    given = {"runtime": host_side.content_hash(), "plan": clusters.met(plan, host).to_json()}
    if switch:
        plan = playbook.compile(plays[1], host, names, SWITCHING, run_id=SWITCH, **options)
        given["wake"] = {**asdict(host.wake), "gateways": names["host"]["gateways"], "plan": plan.to_json()}
    files = _digests(path.resolve() for play in plays for path in play.document.paths())
    with contextlib.suppress(OSError):  # without the file it is compiled again
        private.folder(kept.parent)
        write_atomically(kept, json.dumps({"about": about, "files": files, "given": given}).encode())
    return given


def _play(selection: Selection, path: Path, host: Host) -> playbook.Play:
    """Return the one play that restarts this host. Raises Refused if there is not exactly one."""
    plays = [
        play
        for play in playbook.load(path, selection.project.root).plays
        if host in selection.inventory.match(play.hosts)
    ]
    if len(plays) != 1 or not plays[0].has_task("grant_restart"):
        message = f"{host.name} needs exactly one play that restarts and verifies it (`grant_restart`)"
        raise Refused(f"{message}.", where=shown(path), fix=f"Compare it with the shipped playbooks/{path.name}.")
    return plays[0]


def _about(root: Path, names: Mapping[str, Any]) -> str:
    """Return a digest of the plan's inputs other than the playbook's files: its templates, its variables, and the program."""
    templates = _digests(shipped_files.paths(root, "templates/*"))
    own = sorted(map(str, (root / "playbooks").glob("**/*.yml")))  # each may replace a shipped one
    compiler = {item.name: item.stat().st_mtime_ns for item in sorted(Path(playbook.__file__).parent.glob("*.py"))}
    about = [host_side.content_hash(), compiler, templates, own, {name: names[name] for name in sorted(names)}]
    return _digest(json.dumps(about, default=str))


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digests of files, by path. Raises OSError."""
    return {str(path): _digest(path.read_text(errors="replace")) for path in paths}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
