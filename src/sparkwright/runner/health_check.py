"""A health check with its dependencies: the measurement of the decode rate, and the run of a restart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from sparkwright.errors import Inconclusive
from sparkwright.health.check import Check
from sparkwright.health.judging.observation import Observation
from sparkwright.health.record import Speed
from sparkwright.health.settings import Settings
from sparkwright.host.module import Context
from sparkwright.host.records import good_states
from sparkwright.host.runs import journal
from sparkwright.protocol.events import Event
from sparkwright.protocol.plan import Plan
from sparkwright.runner.run import play
from sparkwright.secret import Secret


def composed(context: Context, settings: Settings, **given: Any) -> Check:
    """Return the check of this host. given: arguments of `Check`."""
    if settings.host and context.state.server:  # notifications name one of several servers
        settings = dataclasses.replace(settings, host=f"{settings.host}/{context.state.server}")
    return Check(context, settings, measure_speed, run_plan, **given)


def run_plan(context: Context, plan: Plan, secrets: Mapping[str, Secret]) -> Event:
    """Run a plan in this process, as a run that is kept. Returns its recap."""
    hidden = tuple(secret.reveal() for secret in secrets.values())
    book = journal.Journal.begin(context.state, plan.run_id, plan.to_json(), hidden)
    play(plan, context.machine, context.state, secrets, book)
    return journal.recap_of(book.folder) or {"failed": 1, "msg": "the run was cut off"}


def measure_speed(context: Context, observed: Observation, tokens: int) -> Speed:
    """Run one `smoke_test` against the baseline of the last good state. It never creates a baseline."""
    from sparkwright.host.containers import container_labels
    from sparkwright.host.records.baselines import Baselines, key_of
    from sparkwright.modules.proof.smoke_test import SmokeTest

    good = good_states.last(context.state)
    serve = good.get("serve") or {}
    key = serve.get("baseline_key") or {}
    http = container_labels.engine_of_spec(good.get("spec")).http
    if Baselines(context.state).read(key_of(key, context.machine, http)) is None:
        return Speed(verdict="it has no baseline", measured_s=observed.time_s)
    args = SmokeTest.Args(
        base_url=observed.server.url,
        model=serve.get("served_name", ""),
        tok_per_s=serve.get("tok_per_s"),
        baseline_key=key,
        tokens=tokens,
        wait_s=0,
    )
    try:
        data = SmokeTest().run(args, context).data
    except Inconclusive as error:
        return Speed(verdict=error.message)
    if data["verdict"] in ("inconclusive", "invalid", "broken"):
        return Speed(verdict=data["verdict"])
    rate, base, first = data["tok_per_s"], data["baseline"], data["ttft_s"]
    return Speed(rate, base, first, str(data["verdict"]), observed.time_s)
