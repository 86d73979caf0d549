"""Plans to restart each verified state without a laptop: `playbooks/restart.yml` as the laptop compiled it for this host.

restart_plans/NAME.json     {"runtime": the host's side it was compiled with, "plan": a Plan, without any secret,
                             "wake": for a server on demand where requests change turns: how, and the Plan of a switch to it}

NAME is the name of the verified state, so a rollback finds the plan of the state it returned to. The plan itself names the
container and the model that its `grant_restart` makes the last verified state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.records import good_states
from sparkwright.host.state import StateFolder
from sparkwright.protocol.cluster import Cluster
from sparkwright.protocol.plan import Plan, tasks_of
from sparkwright.trust.redact import Redactor

FOLDER = "restart_plans"
#: the name of the result with the reason of the check that requested the restart: {"why": a sentence}
CHECK = "health_check"
BRINGS = "`invoke health.install --heal restart` brings one, with the recipe that was verified; else `invoke deploy`."


def keep(state: StateFolder, given: Mapping[str, Any], hidden: Redactor) -> None:
    """Store a plan from the laptop, if it restarts the last verified state.

    Args:
        given: the plan, in the form of the file.

    Raises:
        Refused: It is not a valid plan, or contains a secret.
    """
    good = good_states.last(state)
    if not good or state.read(_name(good)) == given:
        return
    if not _restarts(_plan(given), good) or ("wake" in given and not _restarts(_plan(given["wake"]), good)):
        return
    if hidden.hides(json.dumps(given, ensure_ascii=False).encode(errors="replace")):
        raise Refused("the restart plan holds a secret, so it is not kept.", fix="Look at playbooks/restart.yml.")
    state.write(_name(good), dict(given))
    needed = {_name(row) for row in (good, *good_states.before(state))}
    for path in (state.memory / FOLDER).glob("*.json"):
        if f"{FOLDER}/{path.stem}" not in needed:
            path.unlink(missing_ok=True)


def usable(state: StateFolder, runtime: str) -> Plan:
    """Return the plan that restarts the last verified state.

    Args:
        runtime: the host's side that would run it.

    Raises:
        Refused: There is none, or another version of sparkwright compiled it.
    """
    good = good_states.last(state)
    kept = state.read(_name(good))
    if kept is None:
        raise Refused("no restart plan is kept for what was verified.", fix=BRINGS)
    return _usable(kept, kept, good, runtime)


def wake(state: StateFolder) -> dict[str, Any]:
    """Return how requests change the turn of the last verified server, as the laptop wrote it; empty if they do not."""
    return dict((state.read(_name(good_states.last(state))) or {}).get("wake") or {})


def usable_switch(state: StateFolder, runtime: str) -> Plan:
    """Return the plan that switches to the last verified server of this folder. Raises Refused as `usable`."""
    good = good_states.last(state)
    kept = state.read(_name(good)) or {}
    if "wake" not in kept:
        raise Refused("no plan of a switch to it is kept.", fix=BRINGS)
    return _usable(kept, kept["wake"], good, runtime)


def _usable(kept: Mapping[str, Any], given: Mapping[str, Any], good: Mapping[str, Any], runtime: str) -> Plan:
    if kept["runtime"] != runtime:
        raise Refused(
            "the restart plan was made by another version of sparkwright.",
            fix="`invoke health.install --heal restart` brings the plan and the health check up to date.",
        )
    plan = _plan(given)
    if not _restarts(plan, good):
        raise Refused("the restart plan is of another server.", fix=BRINGS)
    return plan


def cluster_of(state: StateFolder) -> Cluster | None:
    """Return the cluster of the last verified state, from its restart plan; None if unknown."""
    kept = state.read(_name(good_states.last(state))) or {}
    try:
        return Plan.from_json(kept["plan"]).cluster
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def restarted_by(plan: Plan) -> dict[str, Any]:
    """Return the state that a plan verifies last, in the form of `good_states`; empty if it is not known in advance."""
    granted = [task for task in tasks_of(plan.steps) if task.module == "grant_restart"]
    state = {name: granted[-1].args.get(name) for name in ("spec", "model")} if granted else {}
    return state if all(isinstance(item, dict) for item in state.values()) else {}


def _restarts(plan: Plan, good: Mapping[str, Any]) -> bool:
    return name_of(restarted_by(plan)) == name_of(good)


def _plan(kept: Mapping[str, Any]) -> Plan:
    try:
        return Plan.from_json(kept["plan"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Refused("the restart plan can't be read.", fix=BRINGS) from None


def _name(good: Mapping[str, Any]) -> str:
    return f"{FOLDER}/{name_of(good)}"


def name_of(state: Mapping[str, Any]) -> str:
    """Return a hash of what a state serves, as `good_states.same` compares it; of the server's key only whether there is one."""
    spec, commit = good_states.essence(state)
    essence = json.dumps([{**spec, "server_key": bool(spec.get("server_key"))}, commit], sort_keys=True)
    return hashlib.sha256(essence.encode(errors="replace")).hexdigest()[:16]
