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
from sparkwright.host.records import verified_states
from sparkwright.host.state import StateFolder
from sparkwright.protocol.cluster import Cluster
from sparkwright.protocol.plan import Plan, tasks_of
from sparkwright.trust.redact import Redactor

FOLDER = "restart_plans"
#: the name of the result with the reason of the check that requested the restart: {"why": a sentence}
CHECK_RESULT = "health_check"
PLAN_FIX = "`invoke health.install --heal restart` brings one, with the recipe that was verified; else `invoke deploy`."


def save(state: StateFolder, record: Mapping[str, Any], redactor: Redactor) -> None:
    """Store a plan from the laptop, if it restarts the last verified state.

    Args:
        record: the plan, in the form of the file.

    Raises:
        Refused: It is not a valid plan, or contains a secret.
    """
    verified = verified_states.load_last(state)
    if not verified or state.read(_record_name(verified)) == record:
        return
    if not _is_restart_of(_parse_plan(record), verified) or (
        "wake" in record and not _is_restart_of(_parse_plan(record["wake"]), verified)
    ):
        return
    if redactor.has_secret(json.dumps(record, ensure_ascii=False).encode(errors="replace")):
        raise Refused("the restart plan holds a secret, so it is not kept.", fix="Look at playbooks/restart.yml.")
    state.write(_record_name(verified), dict(record))
    needed = {_record_name(row) for row in (verified, *verified_states.load_earlier(state))}
    for path in (state.records_folder / FOLDER).glob("*.json"):
        if f"{FOLDER}/{path.stem}" not in needed:
            path.unlink(missing_ok=True)


def load_usable(state: StateFolder, runtime: str) -> Plan:
    """Return the plan that restarts the last verified state.

    Args:
        runtime: the host's side that would run it.

    Raises:
        Refused: There is none, or another version of sparkwright compiled it.
    """
    verified = verified_states.load_last(state)
    record = state.read(_record_name(verified))
    if record is None:
        raise Refused("no restart plan is kept for what was verified.", fix=PLAN_FIX)
    return _validate_plan(record, record, verified, runtime)


def read_wake(state: StateFolder) -> dict[str, Any]:
    """Return how requests change the turn of the last verified server, as the laptop wrote it; empty if they do not."""
    return dict((state.read(_record_name(verified_states.load_last(state))) or {}).get("wake") or {})


def load_usable_switch(state: StateFolder, runtime: str) -> Plan:
    """Return the plan that switches to the last verified server of this folder. Raises Refused as `load_usable`."""
    verified = verified_states.load_last(state)
    record = state.read(_record_name(verified)) or {}
    if "wake" not in record:
        raise Refused("no plan of a switch to it is kept.", fix=PLAN_FIX)
    return _validate_plan(record, record["wake"], verified, runtime)


def _validate_plan(
    record: Mapping[str, Any], plan_record: Mapping[str, Any], verified: Mapping[str, Any], runtime: str
) -> Plan:
    if record["runtime"] != runtime:
        raise Refused(
            "the restart plan was made by another version of sparkwright.",
            fix="`invoke health.install --heal restart` brings the plan and the health check up to date.",
        )
    plan = _parse_plan(plan_record)
    if not _is_restart_of(plan, verified):
        raise Refused("the restart plan is of another server.", fix=PLAN_FIX)
    return plan


def read_cluster(state: StateFolder) -> Cluster | None:
    """Return the cluster of the last verified state, from its restart plan; None if unknown."""
    record = state.read(_record_name(verified_states.load_last(state))) or {}
    try:
        return Plan.from_json(record["plan"]).cluster
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def restarted_state(plan: Plan) -> dict[str, Any]:
    """Return the state that a plan verifies last, in the form of `verified_states`; empty if it is not known in advance."""
    grants = [task for task in tasks_of(plan.steps) if task.module == "grant_restart"]
    state = {name: grants[-1].args.get(name) for name in ("spec", "model")} if grants else {}
    return state if all(isinstance(item, dict) for item in state.values()) else {}


def _is_restart_of(plan: Plan, verified: Mapping[str, Any]) -> bool:
    return state_hash(restarted_state(plan)) == state_hash(verified)


def _parse_plan(record: Mapping[str, Any]) -> Plan:
    try:
        return Plan.from_json(record["plan"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Refused("the restart plan can't be read.", fix=PLAN_FIX) from None


def _record_name(verified: Mapping[str, Any]) -> str:
    return f"{FOLDER}/{state_hash(verified)}"


def state_hash(state: Mapping[str, Any]) -> str:
    """Return a hash of the container and model of a state, which are what `verified_states.is_same` compares.

    A server's key counts only as present or absent.
    """
    spec, commit = verified_states.served_identity(state)
    essence = json.dumps([{**spec, "server_key": bool(spec.get("server_key"))}, commit], sort_keys=True)
    return hashlib.sha256(essence.encode(errors="replace")).hexdigest()[:16]
