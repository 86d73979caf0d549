"""The decision about a restart, and its plan."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkwright import host_side
from sparkwright.errors import Refused
from sparkwright.health import heal
from sparkwright.health.record import Record
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.host.memory import host_outage, start_guard
from sparkwright.host.records import restart_plans, server_keys, verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.host.state import StateFolder
from sparkwright.protocol.plan import Plan, Task
from sparkwright.trust.redact import Redactor

NOW_S = 100_000.0
ON = Settings(heal="restart")
SPEC: dict[str, Any] = {"name": "qwen35", "image": "vllm@sha256:1", "ports": ["8000:8000"], "restart": "unless-stopped"}
MODEL: dict[str, Any] = {"id": "a/b", "commit": "1" * 40, "dir": "~/models/b", "files": []}
KEY = "spk-0123456789abcdef"


def make_record(cure: Any = "restart", **fields: Any) -> Record:
    return Record(NOW_S, "wedged", "wedged", NOW_S, cure=cure, **fields)


def make_plan(spec: dict[str, Any] = SPEC, model: dict[str, Any] = MODEL, **args: Any) -> dict[str, Any]:
    """Return a restart plan as the laptop sends it."""
    grant = Task("t1", "Grant", "grant_restart", {"spec": spec, "model": model, **args})
    steps = Plan("restart", "spark1", "Restart", (grant,)).to_json()
    return {"runtime": host_side.content_hash(), "plan": steps}


def save_verified(state: StateFolder, **spec: Any) -> None:
    verified_states.save_verified(state, VerifiedState.from_json({"spec": {**SPEC, **spec}, "model": MODEL}))


@pytest.fixture
def state(tmp_path: Path) -> StateFolder:
    folder = StateFolder.in_home(tmp_path)
    save_verified(folder)
    return folder


def save_plan(state: StateFolder, restart_plan: dict[str, Any], *secrets: str) -> None:
    restart_plans.save(state, restart_plan, Redactor(secrets))


def decide(state: StateFolder) -> heal.Decision:
    return heal.decide_restart(make_record(), CheckHistory(cures=2), ON, state, NOW_S)


@pytest.mark.parametrize(
    ("record", "past", "settings", "reason"),
    [
        (make_record(), CheckHistory(cures=2), ON, ""),
        (make_record(), CheckHistory(cures=2), Settings(), "healing is disabled"),
        (make_record(), CheckHistory(cures=1), ON, "second check"),
        (make_record(busy="ops runs deploy"), CheckHistory(cures=2), ON, "a run is in progress"),
        (make_record(cure="power"), CheckHistory(cures=2), ON, "AC power"),
        (make_record(cure="deploy"), CheckHistory(cures=2), ON, "would not help"),
        (make_record(cure=""), CheckHistory(), ON, "would not help"),
        (make_record(drift=("image",)), CheckHistory(cures=2), ON, "differs from the last good state"),
        (make_record(), CheckHistory(cures=2, heals=[NOW_S - 3599]), ON, "less than --heal-every ago"),
        (make_record(), CheckHistory(cures=2, heals=[NOW_S - 3601]), ON, ""),
        (make_record(), CheckHistory(cures=2, heals=[NOW_S - 9000], failed=2), ON, "did not help"),
    ],
)
def test_a_restart_needs_permission(
    record: Record, past: CheckHistory, settings: Settings, reason: str, state: StateFolder
) -> None:
    result = heal.reason_against_restart(record, past, settings, NOW_S)
    assert reason in result and bool(reason) == bool(result)
    save_plan(state, make_plan())
    assert (heal.decide_restart(record, past, settings, state, NOW_S).plan is None) == bool(reason)


def test_the_message_recommends_a_power_cycle_if_nothing_else_helps(state: StateFolder) -> None:
    assert "AC power" in heal.decide_restart(make_record(cure="power"), CheckHistory(cures=5), ON, state, NOW_S).message


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (make_plan(), ""),
        (make_plan({**SPEC, "image_ids": ["sha256:2"]}), ""),
        (None, "no restart plan is stored"),
        (make_plan({**SPEC, "name": "other"}), "no restart plan is stored"),
        (make_plan({**SPEC, "image": "vllm@sha256:2"}), "no restart plan is stored"),
        (make_plan(model={**MODEL, "commit": "2" * 40}), "no restart plan is stored"),
        (make_plan({**SPEC, "server_key": "given:key"}), "no restart plan is stored"),
        ({**make_plan(), "runtime": "another"}, "another version of sparkwright"),
    ],
)
def test_a_restart_needs_a_plan_for_the_verified_state_and_this_runtime(
    stored: dict[str, Any] | None, message: str, state: StateFolder
) -> None:
    if stored is not None:
        save_plan(state, stored)
    decision = decide(state)
    assert (decision.plan is None) == bool(message)
    assert message in decision.message and ("`invoke health.install" in decision.message) == bool(message)


def test_a_server_that_was_running_when_the_host_went_down_is_not_restarted(state: StateFolder) -> None:
    save_plan(state, make_plan())
    assert decide(state).plan is not None
    why = "the host went down at 02:14 while qwen35 was serving"
    state.write(
        host_outage.LAST_OUTAGE_RECORD, {"key": start_guard.configuration_key(SPEC), "name": "qwen35", "why": why}
    )
    decision = decide(state)
    assert (decision.plan, decision.message) == (None, f"not restarted: {why}")
    state.write(host_outage.LAST_OUTAGE_RECORD, {"key": "another", "name": "qwen35", "why": why})
    assert decide(state).plan is not None


@pytest.mark.parametrize(
    "damage", [lambda value: {**value, "schema": 99}, lambda value: {**value, "steps": 1}, lambda value: {}]
)
def test_a_damaged_plan_or_one_of_another_schema_is_not_run(
    damage: Callable[[dict[str, Any]], dict[str, Any]], state: StateFolder
) -> None:
    save_plan(state, make_plan())
    file = next((state.path / restart_plans.FOLDER).iterdir())
    assert file.stat().st_mode & 0o777 == 0o600
    name = f"{restart_plans.FOLDER}/{file.stem}"
    state.write(name, {**make_plan(), "plan": damage(make_plan()["plan"])})
    assert "the restart plan can't be read" in decide(state).message


def test_each_verified_state_has_its_own_plan(state: StateFolder) -> None:
    save_plan(state, make_plan(why="the first"))
    save_verified(state, image="vllm@sha256:2")
    assert decide(state).plan is None
    save_plan(state, make_plan({**SPEC, "image": "vllm@sha256:2"}))
    assert decide(state).plan is not None
    save_verified(state)
    parsed = decide(state).plan
    assert parsed is not None and parsed.steps[0].args["why"] == "the first"  # type: ignore[union-attr]


def test_plans_of_dropped_states_are_removed(state: StateFolder) -> None:
    for n in range(verified_states.MAX_EARLIER_STATES + 3):
        save_verified(state, image=f"vllm@sha256:{n}")
        save_plan(state, make_plan({**SPEC, "image": f"vllm@sha256:{n}"}))
    assert len(list((state.path / restart_plans.FOLDER).iterdir())) == verified_states.MAX_EARLIER_STATES + 1


def test_a_plan_that_contains_a_secret_is_not_stored(state: StateFolder) -> None:
    with pytest.raises(Refused, match="contains a secret"):
        save_plan(state, make_plan(why=f"with {KEY}"), KEY)
    assert not (state.path / restart_plans.FOLDER).exists()


def test_the_plan_gets_the_stored_key_of_the_server(state: StateFolder) -> None:
    path = server_keys.save_key(state, "qwen35", KEY, world_readable=False)
    save_verified(state, server_key="kept:" + server_keys.fingerprint(state, KEY))
    save_plan(state, make_plan({**SPEC, "server_key": "given:server_key of qwen"}))
    decision = decide(state)
    assert {name: secret.reveal() for name, secret in decision.secrets.items()} == {"server_key of qwen": KEY}
    path.unlink()
    without_key = decide(state)
    assert without_key.plan is None
    assert "key is no longer stored" in without_key.message and "`invoke deploy`" in without_key.message
