"""Build the host's health check, and run it on demand without recording a run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sparkwright.errors import Exit, Inconclusive
from sparkwright.health.check import DOCKER_TIMEOUT_S, HealthCheck
from sparkwright.health.judging.judge import EXIT_CODES
from sparkwright.health.judging.observation import Observation
from sparkwright.health.record import Record, Speed
from sparkwright.health.settings import Settings
from sparkwright.host.machine import Machine
from sparkwright.host.module import Context
from sparkwright.host.records import verified_states
from sparkwright.host.runs import journal
from sparkwright.host.runs.context import DockerEngine, RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, event
from sparkwright.protocol.plan import Plan, new_run_id
from sparkwright.runner.check_requests import stream_events
from sparkwright.runner.run import execute_plan
from sparkwright.secret import Secret

#: id and module of the only task in the events of a check on demand
TASK_ID = "health"
#: advice for the user, by the cure in a check's record
FIX_BY_CURE = {
    "restart": "Run `invoke restart`.",
    "power": "Cut its AC power for 60 s; nothing else helps.",
    "deploy": "`invoke plan` shows the differences, `invoke deploy` applies the recipe.",
    "gateway": "`invoke gateway.deploy` restores it.",
    "person": "Run `invoke diagnose` and `invoke doctor`.",
}


def build_check(context: Context, settings: Settings, **arguments: Any) -> HealthCheck:
    """Return the health check of this host.

    Args:
        arguments: additional arguments for `HealthCheck`.
    """
    if settings.host and context.state.server:  # notifications name the server if there are several
        settings = dataclasses.replace(settings, host=f"{settings.host}/{context.state.server}")
    return HealthCheck(context, settings, measure_speed, run_plan, **arguments)


def run_plan(context: Context, plan: Plan, secrets: Mapping[str, Secret]) -> Event:
    """Run a plan in this process, as a recorded run, and return its recap."""
    secret_values = tuple(secret.reveal() for secret in secrets.values())
    run_journal = journal.Journal.begin(context.state, plan.run_id, plan.to_json(), secret_values)
    execute_plan(plan, context.machine, context.state, secrets, run_journal)
    return journal.read_recap(run_journal.folder) or {"failed": 1, "msg": "the run was cut off"}


def measure_speed(context: Context, observed: Observation, token_count: int) -> Speed:
    """Run a `smoke_test` against the baseline of the last verified state. Never creates a baseline."""
    from sparkwright.host.containers import container_labels
    from sparkwright.host.records.baselines import Baselines, build_key
    from sparkwright.modules.proof.smoke_test import SmokeTest

    verified_state = verified_states.load_last(context.state)
    serve = verified_state.serve
    baseline_key = serve.get("baseline_key") or {}
    http = container_labels.engine_of_spec(verified_state.spec).http
    if Baselines(context.state).read(build_key(baseline_key, context.machine, http)) is None:
        return Speed(verdict="no baseline", measured_s=observed.time_s)
    args = SmokeTest.Args(
        base_url=observed.server.url,
        model=serve.get("served_name", ""),
        tok_per_s=serve.get("tok_per_s"),
        baseline_key=baseline_key,
        tokens=token_count,
        wait_s=0,
    )
    try:
        data = SmokeTest().run(args, context).data
    except Inconclusive as error:
        return Speed(verdict=error.message)
    if data["verdict"] in ("inconclusive", "invalid", "broken"):
        return Speed(verdict=data["verdict"])
    return Speed(data["tok_per_s"], data["baseline"], data["ttft_s"], str(data["verdict"]), observed.time_s)


def check(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Check the server's health now, and yield one task and a recap with the state's exit code.

    In the request, `token_s` is the time limit for the token in seconds; 0 for the scheduled check's limit.
    """
    settings = Settings.load(state)
    if request["token_s"]:
        limits = dataclasses.replace(settings.limits, token_s=float(request["token_s"]))
        settings = dataclasses.replace(settings, limits=limits)
    secrets = {name: Secret(value) for name, value in request["secrets"].items()}
    yield event("task_started", task=TASK_ID, name="Check the server's health", module=TASK_ID, where="")
    started_s, records = time.monotonic(), list[Record]()

    def work(emit: Callable[[Event], None]) -> None:
        engine = DockerEngine(machine, timeout_s=DOCKER_TIMEOUT_S)
        context = RunContext(machine, state, new_run_id("check"), emit, secrets=secrets, task=TASK_ID, engine=engine)
        records.append(build_check(context, settings, measure_now=request["smoke"]).run())

    yield from stream_events(work)
    if interrupted := journal.interruption_notice(state):
        yield event("note", task=TASK_ID, text=interrupted)
    yield from _result_events(records[0], time.monotonic() - started_s)


def describe_record(record: Record) -> str:
    """Return this check's result in one line, with the state of the scheduled checks if it differs."""
    schedule_note = f" (scheduled checks so far: {record.state})" if record.state != record.seen else ""
    return f"{record.seen}: {record.why}{schedule_note}"


def _result_events(record: Record, seconds: float) -> Iterator[Event]:
    code = EXIT_CODES[record.seen]
    failed = code is not Exit.OK
    problems = [evidence for evidence in record.evidence if evidence.level != "ok"]
    lines = [f"{problem.level}: {problem.check}: {problem.message}" for problem in problems]
    data = {"evidence": lines, "record": record.to_json()}
    fields: dict[str, Any] = {"task": TASK_ID, "name": "Check the server's health", "module": TASK_ID, "where": ""}
    fix = FIX_BY_CURE.get(record.cure, "") if failed else ""
    fields |= {"msg": describe_record(record), "fix": fix, "diff": [], "data": data, "register": "", "registered": {}}
    status = "failed" if failed else "ok"
    yield event("task_finished", **fields, status=status, exit=int(code), seconds=round(seconds, 3))
    counts = {"ok": int(not failed), "changed": 0, "failed": int(failed), "skipped": 0, "unreachable": 0}
    msg = f"{describe_record(record)} {fix}".strip() if failed else ""
    yield event("recap", host="", **counts, exit=int(code), seconds=round(seconds, 3), msg=msg)
