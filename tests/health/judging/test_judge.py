"""The evaluation of observations: a table of observations and the expected states."""

from dataclasses import replace
from typing import Any

import pytest

from sparkwright.errors import Exit
from sparkwright.health.judging.judge import EXIT_CODES, damp_state, evaluate_observation, is_notifiable
from sparkwright.health.judging.observation import Limits, Observation
from sparkwright.health.judging.questions import QUESTIONS
from sparkwright.health.record import STATES, Container, Gpu, Machine, Server, Speed
from sparkwright.units import GIB

NOW_S = 100_000.0
CONTAINER = Container("qwen35", "abc", "running", 0, "unless-stopped", None, NOW_S - 7200, verified=True)
SERVER = Server("http://127.0.0.1:8000", 200, "made", 0.06, 0.0, 0.0, 500.0)
FINE = Observation(
    NOW_S,
    container=CONTAINER,
    restart_policy="unless-stopped",
    has_answered=True,
    ready_s=400.0,
    server=SERVER,
    machine=Machine(120 * GIB, 11 * GIB, 16 * GIB, GIB, 500 * GIB, 9e5),
    gpus=(Gpu(47, 38, 2411, 3),),
)
SILENT = replace(SERVER, health_status=0, token="", token_s=None, running=None, waiting=None, generated_tokens=None)
STARVED = Gpu(45, 21, 712, 96)


def make_container(**changes: Any) -> Container:
    return replace(CONTAINER, **changes)


def make_server(**changes: Any) -> Server:
    return replace(SERVER, **changes)


def stopped(status: str = "exited", *, policy: str = "unless-stopped", **changes: Any) -> dict[str, Any]:
    """Return the changes for a container that does not run."""
    return {"container": make_container(status=status, policy=policy, **changes), "server": Server()}


def starting(age_s: float, **changes: Any) -> dict[str, Any]:
    """Return the changes for a container that has been starting for this time."""
    return {"server": SILENT, "has_answered": False, "container": make_container(started_s=NOW_S - age_s, **changes)}


LOADING = make_server(health_status=503, token="")
NO_TOKEN = make_server(token="none")
RECENT_EXIT: dict[str, Any] = {"finished_s": NOW_S - 5}
UNDEPLOYED = {"server": Server(), "container": Container()}
#: differences from a healthy observation, state, cure, part of the reason
CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "healthy": ({}, "ok", "", "a token in 0.06 s"),
    "busy": ({"server": make_server(token="skipped", token_s=None, running=3.0)}, "ok", "", "it generates"),
    "stopped by hand": (
        stopped(exit_code=0, **RECENT_EXIT), "down", "person",
        "qwen35 was stopped by hand: exited (0) 5 s ago, and Docker restarts containers that exit by themselves"),
    "exited without a restart policy": (
        stopped(exit_code=0, policy="no", **RECENT_EXIT), "down", "person", "qwen35 exited (0) 5 s ago, not stopped by sparkwright"),
    "failed to start": (stopped(exit_code=128), "down", "person", "qwen35 exited (128), not stopped by sparkwright"),
    "stopped by a run": (
        {**stopped(exit_code=0, policy="no"), "stopping_run": "run-7"}, "down", "person",
        "qwen35 exited (0), stopped by sparkwright (run run-7)"),
    "asleep": (
        {**stopped(exit_code=0, policy="no"), "restart_policy": "", "awake_server": "glm"}, "asleep", "", "it is the turn of glm"),
    "asleep until its first turn": (
        {"has_verified_server": False, "awake_server": "glm"}, "asleep", "", "it is the turn of glm; this server has not been verified yet"),
    "running out of turn": ({"awake_server": "glm"}, "degraded", "person", "but it is the turn of glm"),
    "killed": (stopped(exit_code=137), "down", "person", "137"),
    "no container": (stopped("absent"), "down", "deploy", "there is no container"),
    "dead engine": ({"server": LOADING}, "down", "restart", "503"),
    "503 while loading": ({**starting(20), "server": LOADING, "loading": True}, "starting", "", "starting for 20 s (up to 800 s"),
    "503 after it was ready": ({"server": LOADING, "loading": True}, "wedged", "restart", "ready before: no token"),
    "no answer any more": ({"server": SILENT}, "down", "restart", "any more"),
    "restart after a failure": (stopped("restarting", exit_code=1), "down", "", "exited with code 1; restart"),
    "restart after an exit with 0": (
        stopped("restarting", exit_code=0, restarts=1, **RECENT_EXIT), "down", "", "exited with code 0 5 s ago; restart"),
    "first restart": (starting(3, restarts=1, **RECENT_EXIT), "down", "", "qwen35 exited 5 s ago, restarted once; starting for 3 s"),
    "second restart": (
        starting(3, restarts=2, **RECENT_EXIT), "crash-looping", "", "qwen35 exited 5 s ago, restarted 2 times; starting for 3 s"),
    "restarted by hand": (stopped("restarting", exit_code=0), "starting", "", "being restarted"),
    "start": (starting(60), "starting", "", "starting for 60 s"),
    "slow start": (starting(799), "starting", "", "up to 800 s, the last start took 400 s"),
    "start beyond the limit": (starting(801), "down", "restart", "a start may take 800 s"),
    "start without an earlier measurement": ({**starting(899), "ready_s": None}, "starting", "", "up to 900 s"),
    "crash loop": ({"crash_loop_reason": "it restarted 4 times within 10 minutes"}, "crash-looping", "person", "4 times"),
    "stopped crash loop": (
        {**stopped(exit_code=1), "loop_stop_reason": "it restarted 4 times"}, "crash-looping", "person", "stopped for a crash loop"),
    "no token without other requests": ({"server": NO_TOKEN}, "wedged", "restart", "no token within 30 s"),
    "no token with other requests": (
        {"server": make_server(token="none", running=2.0)}, "unknown", "", "possibly a long prefill; one check can't confirm a stall"),
    "frozen": ({"server": make_server(token="", running=2.0), "frozen_s": 300.0}, "stalled", "restart", "300 s with 2"),
    "frozen for a moment": ({"server": make_server(running=1.0), "frozen_s": 20.0}, "ok", "", "a token"),
    "low clock": ({"gpus": (STARVED, STARVED)}, "degraded", "power", "AC power"),
    "low clock for a moment": ({"gpus": (STARVED, Gpu(47, 60, 2400, 96))}, "ok", "", "a token"),
    "low clock and no token": ({"gpus": (STARVED, STARVED), "server": NO_TOKEN}, "wedged", "power", "no token"),
    "low power at full clock": ({"gpus": (Gpu(50, 21, 2411, 96),) * 2}, "ok", "", "a token"),
    "slow": ({"speed": Speed(30.0, 47.0, 0.1, "regression", NOW_S)}, "degraded", "person", "30.0 tok/s"),
    "slow host": ({"speed": Speed(9.0, 47.0, 0.1, "host degraded", NOW_S)}, "degraded", "power", "9.0 tok/s"),
    "hot": ({"gpus": (Gpu(96, 60, 2411, 90),)}, "degraded", "person", "96 °C"),
    "little memory": ({"machine": replace(FINE.machine, mem_available_bytes=GIB)}, "degraded", "person", "1.0 of 120.0"),
    "swapping": ({"machine": replace(FINE.machine, swap_used_bytes=15 * GIB)}, "degraded", "person", "swap"),
    "full disk": ({"machine": replace(FINE.machine, disk_free_bytes=GIB)}, "degraded", "person", "disk"),
    "drift of many files": (
        {"drift": ("env", *(f"model {n}.safetensors" for n in range(14)))}, "degraded", "deploy",
        "state: env, 14 files of its model: 0.safetensors, 1.safetensors, 2.safetensors and 11 more"),
    "drift": ({"drift": ("--max-num-seqs", "model a.safetensors")}, "degraded", "deploy", "--max-num-seqs, model a"),
    "no restart policy": ({"container": make_container(policy="no")}, "degraded", "deploy", "will not start after a reboot"),
    "unknown API key": ({"server": make_server(token="refused")}, "unknown", "person", "API key"),
    "no answer from Docker": ({"engine_error": "it hangs", "container": Container("qwen35")}, "unknown", "person", "it hangs"),
    "deploy in progress": ({"active_run": "ops runs deploy", **UNDEPLOYED}, "unknown", "", "in progress"),
    "nothing deployed": ({"has_verified_server": False, **UNDEPLOYED}, "unknown", "deploy", "been verified"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "state", "cure", "why"), CASES.values(), ids=CASES.keys())
def test_an_observation_is_evaluated_to_a_state(changes: dict[str, Any], state: str, cure: str, why: str) -> None:
    evaluation = evaluate_observation(replace(FINE, **changes), Limits())
    assert (evaluation.state, evaluation.cure) == (state, cure), evaluation
    assert why in evaluation.why


def test_every_state_has_an_exit_code() -> None:
    assert set(STATES) == set(EXIT_CODES)
    assert {state for _, state, _, _ in CASES.values()} == set(STATES)
    codes = EXIT_CODES["starting"], EXIT_CODES["degraded"], EXIT_CODES["unknown"]
    assert codes == (Exit.OK, Exit.CHANGES, Exit.INCONCLUSIVE)


def test_unknown_values_never_count_as_good() -> None:
    observation = Observation(NOW_S, container=CONTAINER, server=Server("http://127.0.0.1:8000", 200))
    levels = {item.check: item.level for item in evaluate_observation(observation, Limits()).evidence}
    assert levels["stall"] == levels["power"] == levels["memory"] == "unknown"
    assert set(levels) <= set(QUESTIONS)


FLAPS = ["ok", "down", "ok", "down", "ok"]


@pytest.mark.parametrize(
    ("before", "seen", "state"),
    [
        (None, "ok", "ok"),
        (None, "degraded", "degraded"),  # the first check
        ("ok", "ok degraded", "ok"),  # not confirmed yet
        ("ok", "ok degraded degraded", "degraded"),
        ("ok", "ok unknown", "ok"),
        ("ok", "ok down", "down"),
        ("ok", "ok ok wedged", "wedged"),
        ("ok", "ok crash-looping", "crash-looping"),
        ("down", "down starting", "starting"),
        ("starting", "starting ok", "ok"),
        ("degraded", "degraded ok", "ok"),
        ("degraded", "degraded down", "down"),
        ("down", "ok down ok down ok", "ok"),  # flapping, but now it generates
        ("wedged", "ok wedged ok wedged ok", "ok"),
        ("crash-looping", "ok down ok crash-looping degraded", "degraded"),
        ("down", "ok down ok down starting", "down"),  # flapping, and a start does not prove that it generates
        ("down", "ok down ok down starting starting starting", "starting"),
        ("ok", "ok down ok down", "down"),
    ],
)
def test_the_reported_state_is_damped(before: str | None, seen: str, state: str) -> None:
    assert damp_state(before, seen.split()).state == state  # type: ignore[arg-type]


def test_flapping_ends_after_stable_checks() -> None:
    assert damp_state("down", FLAPS).flapping  # type: ignore[arg-type]
    assert not damp_state("ok", [*FLAPS, *["ok"] * 12]).flapping  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("seen", "notifiable"),
    [
        ("ok", True),
        ("down ok", True),
        ("ok down ok down", True),
        ("ok down ok down ok", False),
        ("ok down ok down ok ok", False),
        ("ok down ok down ok ok ok", True),
        ("ok down ok down ok down", True),
    ],
)
def test_a_good_state_of_a_flapping_server_is_notified_after_some_checks(seen: str, notifiable: bool) -> None:
    assert is_notifiable(seen.split()) == notifiable  # type: ignore[arg-type]


def test_uptime_is_not_negative_after_the_clock_was_set_back() -> None:
    evaluation = evaluate_observation(replace(FINE, container=make_container(started_s=NOW_S + 86400)), Limits())
    assert (evaluation.state, evaluation.evidence[0].message) == ("ok", "qwen35 is running, 0 restarts")
