"""When a restart is allowed, and what it is made of."""

from __future__ import annotations

from typing import Any

import pytest

from sparkwright.health import heal
from sparkwright.health.record import Record
from sparkwright.health.remembered import Remembered
from sparkwright.health.settings import Settings
from sparkwright.modules import registry
from sparkwright.protocol import arguments
from sparkwright.protocol.plan import Plan, tasks_of

NOW_S = 100_000.0
ON = Settings(heal="restart")


def record(**given: Any) -> Record:
    return Record(
        **{"time_s": NOW_S, "state": "wedged", "seen": "wedged", "since_s": NOW_S, "cure": "restart", **given}
    )


@pytest.mark.parametrize(
    ("found", "past", "settings", "why_not"),
    [
        (record(), Remembered(cures=2), ON, ""),
        (record(), Remembered(cures=2), Settings(), "healing is off"),
        (record(), Remembered(cures=1), ON, "one look"),
        (record(busy="ops runs deploy"), Remembered(cures=2), ON, "somebody works"),
        (record(cure="power"), Remembered(cures=2), ON, "AC power"),
        (record(cure="deploy"), Remembered(cures=2), ON, "would not help"),
        (record(cure=""), Remembered(), ON, "would not help"),
        (record(drift=("image",)), Remembered(cures=2), ON, "not the last good state"),
        (record(), Remembered(cures=2, heals=[NOW_S - 3599]), ON, "budget"),
        (record(), Remembered(cures=2, heals=[NOW_S - 3601]), ON, ""),
        (record(), Remembered(cures=2, heals=[NOW_S - 9000], failed=2), ON, "did not help"),
    ],
)
def test_a_restart_has_to_be_allowed(found: Record, past: Remembered, settings: Settings, why_not: str) -> None:
    said = heal.decide(found, past, settings, NOW_S).why_not
    assert why_not in said and bool(why_not) == bool(said)


def test_a_drain_of_power_is_asked_for_where_nothing_else_helps() -> None:
    assert "AC power" in heal.decide(record(cure="power"), Remembered(cures=5), ON, NOW_S).said


def test_the_restart_is_a_plan_that_the_runner_can_run() -> None:
    good = {
        "spec": {"name": "qwen35", "image": "vllm@sha256:1", "ports": ["8000:8000"], "restart": "unless-stopped"},
        "serve": {"served_name": "qwen", "utilization": 0.85, "ready_s": 900, "stop_timeout_s": 60},
        "model": {"id": "a/b", "commit": "1" * 40, "dir": "~/models/b"},
    }
    made = Plan.from_json(heal.plan(good, "run-1", "spark1").to_json())
    for task in tasks_of(made.steps):
        assert arguments.build(registry.load(task.module).Args, task.args, module=task.module) is not None
    assert made.exclusive
    assert (
        next(one.args["base_url"] for one in tasks_of(made.steps) if one.module == "verify_health")
        == "http://127.0.0.1:8000"
    )
