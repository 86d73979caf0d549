"""How a host restarts its server without a laptop: playbooks/restart.yml, compiled for it.

Compiling takes longer than all the rest of a deploy that has nothing to do, so the laptop keeps the last one of each host, with
what it was made from.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkwright import host_side
from sparkwright.app.connect import Chosen
from sparkwright.errors import Refused
from sparkwright.host.records.restart_plans import CHECK
from sparkwright.host.state import write_atomically
from sparkwright.project import playbook, starter
from sparkwright.project.inventory.host import Host
from sparkwright.trust import private

NAME = "restart"
#: what is different when a check runs it; everything else is as in `invoke restart`
HEALING = {"outcome": "healed", "reason": f"{{{{ {CHECK}.why }}}}"}
OPTIONS = playbook.Options(extra=HEALING)


def give(chosen: Chosen) -> None:
    """Let the plan of each chosen host go down with what is asked of it next. Raises Refused, with file and line."""
    from sparkwright.app.plans.pinning import lock_folder
    from sparkwright.app.plans.recipes import entries, recipe_of, user_of
    from sparkwright.project import recipe
    from sparkwright.project.lock import lockfile

    for member in chosen.fleet.members:
        wanted = recipe_of(chosen.project, member.host)
        known = entries(lockfile.load(lock_folder(chosen.project, member.host)), wanted)
        member.restart = of(chosen, member.host, recipe.scope(member.host, user_of(member.host), wanted, known))


def of(chosen: Chosen, host: Host, names: Mapping[str, Any]) -> dict[str, Any]:
    """The plan as the host keeps it (host/records/restart_plans.py); empty while spark.lock does not say what is served.

    names: what the laptop knows of the host. Raises Refused, with file and line.
    """
    lock = names.get("lock") or {}
    if not lock.get("image") or not lock.get("model"):
        return {}
    path = _playbook(chosen.project.root)
    source = _made_from(path, chosen.project.root, names)
    kept = host_side.cache() / "restart-plans" / f"{_digest(str(chosen.project.root.resolve()))}-{host.name}.json"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(kept.read_bytes())
        if found["made_from"] == source:
            return dict(found["given"])
    given = {"runtime": host_side.content_hash(), "plan": _compiled(chosen, path, host, names)}
    with contextlib.suppress(OSError):  # it is compiled again the next time
        private.folder(kept.parent)
        write_atomically(kept, json.dumps({"made_from": source, "given": given}).encode())
    return given


def _compiled(chosen: Chosen, path: Path, host: Host, names: Mapping[str, Any]) -> dict[str, Any]:
    plays = [one for one in playbook.load(path).plays if host in chosen.inventory.match(one.hosts)]
    if len(plays) != 1 or not plays[0].has_task("grant_restart"):
        said = "a health check restarts by one play, with a `grant_restart` in it, and there is none such"
        raise Refused(f"{said} for {host.name}.", where=str(path), fix="Look at the shipped playbooks/restart.yml.")
    plan = playbook.compile(
        plays[0],
        host,
        names,
        OPTIONS,
        run_id=NAME,
        project=chosen.project.root,
        registered={CHECK: {"why": ""}},
    )
    return plan.to_json()


def _playbook(root: Path) -> Path:
    """The project's own, else the shipped one."""
    own = root / "playbooks" / f"{NAME}.yml"
    return own if own.is_file() else starter.source() / "playbooks" / f"{NAME}.yml"


def _made_from(path: Path, root: Path, names: Mapping[str, Any]) -> str:
    """Names everything that the plan is compiled from, and the program that does it."""
    texts = [one for one in (*path.parent.rglob("*.yml"), *(root / "templates").glob("*")) if one.is_file()]
    files = {str(one): _digest(one.read_text(errors="replace")) for one in sorted(texts)}
    compiler = {str(one): one.stat().st_mtime_ns for one in Path(playbook.__file__).parent.glob("*.py")}
    about = [host_side.content_hash(), compiler, files, {name: names[name] for name in sorted(names)}]
    return _digest(json.dumps(about, default=str))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:32]
