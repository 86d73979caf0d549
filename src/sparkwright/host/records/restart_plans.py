"""Restart plans: `playbooks/restart.yml`, compiled on the laptop, so that this host can restart its server without it.

restart_plans/HASH.json     {"runtime": hash of the host's code that the plan was compiled for, "plan": a Plan without secrets,
                             "wake": if the server is on demand and requests wake it: settings, and the Plan of a switch to it}

HASH is the verified state's `state_hash`, so that a rollback brings that state's plan back into use. The plan's `grant_restart`
task contains the container and model of the state.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.records import verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.state import StateFolder
from sparkwright.protocol.cluster import Cluster
from sparkwright.protocol.plan import Plan, tasks_of
from sparkwright.trust.redact import Redactor

FOLDER = "restart_plans"
#: variable in a plan with the reason for the restart: {"why": the health check's message}
CHECK_RESULT_VARIABLE = "health_check"
PLAN_FIX = (
    "`invoke health.install --heal restart` (with your other options) sends one if the recipe has not changed since; "
    "otherwise, `invoke deploy`."
)


def save(state: StateFolder, record: Mapping[str, Any], redactor: Redactor) -> None:
    """Store a plan from the laptop; ignore it unless it restarts the last verified state.

    Args:
        record: the content of the plan's file.

    Raises:
        Refused: The plan is invalid or contains a secret.
    """
    verified = verified_states.load_last(state)
    if not verified or state.read(_record_name(verified)) == record:
        return
    if not _is_restart_of(_parse_plan(record), verified) or (
        "wake" in record and not _is_restart_of(_parse_plan(record["wake"]), verified)
    ):
        return
    if redactor.has_secret(json.dumps(record, ensure_ascii=False).encode(errors="replace")):
        raise Refused("the restart plan contains a secret, so it was not stored.", fix="Check playbooks/restart.yml.")
    state.write(_record_name(verified), dict(record))
    needed_names = {_record_name(row) for row in (verified, *verified_states.load_earlier(state))}
    for path in (state.records_folder / FOLDER).glob("*.json"):
        if f"{FOLDER}/{path.stem}" not in needed_names:
            path.unlink(missing_ok=True)


def load_usable(state: StateFolder, runtime_hash: str) -> Plan:
    """Return the plan that restarts the last verified state.

    Args:
        runtime_hash: hash of the host's code that will run it.

    Raises:
        Refused: There is no plan, or it was compiled for another version of sparkwright.
    """
    verified = verified_states.load_last(state)
    record = state.read(_record_name(verified))
    if record is None:
        raise Refused("no restart plan is stored for the last verified server.", fix=PLAN_FIX)
    return _validate_plan(record, record, verified, runtime_hash)


def read_wake(state: StateFolder) -> dict[str, Any]:
    """Return the `wake` field of the last verified state's plan; empty if requests do not wake the server."""
    return dict((state.read(_record_name(verified_states.load_last(state))) or {}).get("wake") or {})


def load_usable_switch(state: StateFolder, runtime_hash: str) -> Plan:
    """Return the plan that switches to the last verified server. Raises Refused like `load_usable`."""
    verified = verified_states.load_last(state)
    record = state.read(_record_name(verified)) or {}
    if "wake" not in record:
        raise Refused("no plan is stored for a switch to the last verified server.", fix=PLAN_FIX)
    return _validate_plan(record, record["wake"], verified, runtime_hash)


def _validate_plan(
    record: Mapping[str, Any], plan_record: Mapping[str, Any], verified: VerifiedState, runtime_hash: str
) -> Plan:
    if record["runtime"] != runtime_hash:
        raise Refused(
            "the restart plan was made by another version of sparkwright.",
            fix="`invoke health.install --heal restart` (with your other options) updates the plan and the health check.",
        )
    plan = _parse_plan(plan_record)
    if not _is_restart_of(plan, verified):
        raise Refused("the restart plan is for another server.", fix=PLAN_FIX)
    return plan


def read_cluster(state: StateFolder) -> Cluster | None:
    """Return the cluster of the last verified state, from its restart plan; None if unknown."""
    record = state.read(_record_name(verified_states.load_last(state))) or {}
    try:
        return Plan.from_json(record["plan"]).cluster
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def restarted_state(plan: Plan) -> dict[str, Any]:
    """Return spec and model of the last `grant_restart` task of a plan; empty if there is no such task, or they are templates."""
    grant_tasks = [task for task in tasks_of(plan.steps) if task.module == "grant_restart"]
    state = {name: grant_tasks[-1].args.get(name) for name in ("spec", "model")} if grant_tasks else {}
    return state if all(isinstance(argument, dict) for argument in state.values()) else {}


def _is_restart_of(plan: Plan, verified: VerifiedState) -> bool:
    return _record_name(VerifiedState.from_json(restarted_state(plan))) == _record_name(verified)


def _parse_plan(record: Mapping[str, Any]) -> Plan:
    try:
        return Plan.from_json(record["plan"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Refused("the restart plan can't be read.", fix=PLAN_FIX) from None


def _record_name(verified: VerifiedState) -> str:
    return f"{FOLDER}/{state_hash(verified)}"


def state_hash(state: VerifiedState) -> str:
    """Return a hash of the fields that `verified_states.is_same` compares, except the value of the server's key."""
    spec, commit = verified_states.served_identity(state)
    identity = json.dumps([{**spec, "server_key": bool(spec.get("server_key"))}, commit], sort_keys=True)
    return hashlib.sha256(identity.encode(errors="replace")).hexdigest()[:16]
