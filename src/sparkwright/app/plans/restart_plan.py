"""The plan by which a host restarts its server without a laptop.

It is compiled from playbooks/restart.yml, or for a member of a cluster from playbooks/cluster/restart.yml. For a server on demand
that a request may wake, or that one may take the place of, the plan of a switch to it is compiled from playbooks/switch.yml too.
Compiling takes longer than the rest of a deploy without changes, so the laptop keeps the last plans of each host with their
inputs.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparkwright import host_side
from sparkwright.app.connect import Selection
from sparkwright.app.plans import clusters, server_context
from sparkwright.app.plans.pins import entries, lock_of, not_pinned
from sparkwright.app.plans.recipes import recipe_of, user_of
from sparkwright.errors import Refused
from sparkwright.host.records.restart_plans import CHECK
from sparkwright.host.state import write_atomically
from sparkwright.project import playbook, recipe, shipped_files
from sparkwright.project.documents.document import shown
from sparkwright.project.inventory.host import Host
from sparkwright.trust import private

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
        names = recipe.scope(
            member.host, user_of(member.host), wanted, known, **server_context.of(selection, member.host)
        )
        member.restart = of(selection, member.host, names)


def of(selection: Selection, host: Host, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plan as the host keeps it (host/records/restart_plans.py); empty if spark.lock lacks a pin.

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
    """Return a digest of the plan's inputs besides the playbook's files: its templates, its variables, and the program."""
    templates = _digests(shipped_files.paths(root, "templates/*"))
    own = sorted(map(str, (root / "playbooks").glob("**/*.yml")))  # each may take the place of a shipped one
    compiler = {item.name: item.stat().st_mtime_ns for item in sorted(Path(playbook.__file__).parent.glob("*.py"))}
    about = [host_side.content_hash(), compiler, templates, own, {name: names[name] for name in sorted(names)}]
    return _digest(json.dumps(about, default=str))


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    """Return the digests of files, by path. Raises OSError."""
    return {str(path): _digest(path.read_text(errors="replace")) for path in paths}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
