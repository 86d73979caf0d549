"""Heal a failed server: restart it with the plan that the last deploy saved on the host.

A restart works like `invoke restart`, but without a laptop: it holds the host's lock, and is listed by `invoke runs` and `invoke
history`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sparkwright import host_side
from sparkwright.errors import Refused
from sparkwright.health.judging.judge import GOOD_STATES, SERVING_STATES
from sparkwright.health.judging.questions import POWER_CYCLE_FIX
from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.host.containers import server_key
from sparkwright.host.memory import host_outage
from sparkwright.host.module import Context
from sparkwright.host.records import restart_plans, verified_states
from sparkwright.host.state import StateFolder
from sparkwright.protocol.container import SECRET_PREFIX
from sparkwright.protocol.events import Event
from sparkwright.protocol.plan import Plan, new_run_id
from sparkwright.secret import Secret

#: number of consecutive checks that must recommend a restart
MIN_CHECKS_BEFORE_RESTART = 2
#: number of consecutive failed restarts after which healing stops
MAX_FAILED_RESTARTS = 2
ACTOR = "the health check"
NOT_RESTARTED = "not restarted: "
#: records of host/gateway/drain_record.py and interim.py, named here so that most checks do not import their HTTP client
DRAINED_RECORD, INTERIM_RECORD = "drained", "interim"

#: runs a plan on this host with its secrets, and returns the recap
RunPlan = Callable[[Context, Plan, Mapping[str, Secret]], Event]


@dataclass(frozen=True, slots=True)
class Decision:
    """A check's decision about a restart."""

    #: plan of the restart; None if the server is not restarted
    plan: Plan | None = None
    #: secrets that the plan needs, by name
    secrets: Mapping[str, Secret] = field(default_factory=dict)
    #: reason why the server is not restarted, for the record
    message: str = ""
    #: reasons of all members of a cluster for the restart, for the history; empty to use the reason of this host's check
    restart_reason: str = ""


def decide_restart(
    record: Record, history: CheckHistory, settings: Settings, state: StateFolder, now_s: float
) -> Decision:
    """Decide whether to restart the server now, and with which plan."""
    reason = reason_against_restart(record, history, settings, now_s)
    if reason:
        return Decision(message=reason if record.cure in ("restart", "power") and settings.heal != "none" else "")
    return decide_from_saved_plan(state)


def decide_from_saved_plan(state: StateFolder) -> Decision:
    """Return the decision to restart with the saved plan, or the reason why it can't be used."""
    if forbidden_reason := host_outage.forbidden_reason(state, verified_states.load_last(state).spec):
        return Decision(message=f"{NOT_RESTARTED}{forbidden_reason}")
    try:
        plan = restart_plans.load_usable(state, host_side.content_hash())
        return Decision(plan, load_plan_secrets(state, plan))
    except Refused as error:
        return Decision(message=f"{NOT_RESTARTED}{error}")


def reason_against_restart(record: Record, history: CheckHistory, settings: Settings, now_s: float) -> str:
    """Return the first reason against a restart; empty if there is none."""
    if settings.heal == "none":
        return "healing is disabled"
    if record.busy:
        return "a run is in progress on the host"
    if record.cure == "power":
        return f"{NOT_RESTARTED}{POWER_CYCLE_FIX}"
    if record.cure != "restart":
        return "a restart would not help"
    if record.rank.rank:
        return f"{NOT_RESTARTED}the head of its cluster decides"
    if record.drift:
        return f"{NOT_RESTARTED}the running server differs from the last good state"
    if history.cures < MIN_CHECKS_BEFORE_RESTART:
        return "not restarted yet: a second check has to confirm it"
    if history.failed >= MAX_FAILED_RESTARTS:
        return f"{NOT_RESTARTED}the last restarts did not help"
    if any(0 <= now_s - restart_time_s < settings.heal_every_s for restart_time_s in history.heals):
        return f"{NOT_RESTARTED}the last restart was less than --heal-every ago"
    return ""


def restart(
    context: Context, decision: Decision, history: CheckHistory, reason: str, now_s: float, run_plan: RunPlan
) -> str:
    """Restart the server, and return a message about the outcome. reason: reason for the history."""
    assert decision.plan is not None
    history.heals = [
        *(restart_time_s for restart_time_s in history.heals if 0 <= now_s - restart_time_s < 86400),
        now_s,
    ]
    history.save(context.state)
    registered = {restart_plans.CHECK_RESULT_VARIABLE: {"why": reason}}
    plan = replace(decision.plan, run_id=new_run_id(), who=ACTOR, registered=registered)
    recap = run_plan(context, plan, decision.secrets)
    outcome = "the restart failed" if recap["failed"] else "restarted"
    return f"{outcome} (run {plan.run_id}){': ' if recap['msg'] else ''}{recap['msg']}"


def load_plan_secrets(state: StateFolder, plan: Plan) -> dict[str, Secret]:
    """Return the server's API key, by the name of its secret in a saved plan; empty if the server has no key.

    Raises Refused if the key is no longer stored.
    """
    secret_name = str(restart_plans.restarted_state(plan)["spec"].get("server_key", ""))
    if not secret_name.startswith(SECRET_PREFIX):
        return {}
    key = server_key.read_verified_key(state)
    if not key:
        raise Refused("the server's key is no longer stored on this host.", fix="`invoke deploy` stores it again.")
    return {secret_name.removeprefix(SECRET_PREFIX): Secret(key)}


def record_outcome(record: Record, history: CheckHistory, state: StateFolder) -> None:
    """Record whether the restart helped, for the next decision. record: the check after the restart."""
    history.failed = 0 if record.seen in GOOD_STATES else history.failed + 1
    history.cures = 0
    history.save(state)


def return_to_gateway(context: Context, record: Record) -> None:
    """Once the verified server generates again, return it to its gateway if drained and remove the interim server.

    Problems are noted. Nothing is done while a run is in progress on the host.
    """
    if record.busy or record.drift or record.seen not in SERVING_STATES:
        return
    if _has_record(context.state, DRAINED_RECORD):
        from sparkwright.host.gateway import drain_record

        returned, problems = drain_record.return_server(context.state)
        for message in (*(f"returned to the gateway {name}" for name in returned), *problems):
            context.note(f"{message}.")
    if _has_record(context.state, INTERIM_RECORD):
        from sparkwright.host.gateway import interim

        if message := interim.remove_leftover(context):
            context.note(f"{message}.")


def _has_record(state: StateFolder, name: str) -> bool:
    return (state.records_folder / f"{name}.json").exists()
