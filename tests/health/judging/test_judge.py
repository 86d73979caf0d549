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


#: differences from a healthy observation, state, cure, part of the reason
CASES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "healthy": ({}, "ok", "", "a token in 0.06 s"),
    "busy": ({"server": make_server(token="skipped", token_s=None, running=3.0)}, "ok", "", "it generates"),
    "a stopped one": (
        {"container": make_container(status="exited", exit_code=0, finished_s=NOW_S - 5), "server": Server()},
        "down",
        "person",
        "qwen35 was stopped by hand: exited (0) 5 s ago, and Docker restarts containers that exit by themselves",
    ),
    "one that Docker leaves when it ends": (
        {
            "container": make_container(status="exited", exit_code=0, finished_s=NOW_S - 5, policy="no"),
            "server": Server(),
        },
        "down",
        "person",
        "qwen35 exited (0) 5 s ago, not stopped by sparkwright",
    ),
    "one that Docker could not start": (
        {"container": make_container(status="exited", exit_code=128), "server": Server()},
        "down",
        "person",
        "qwen35 exited (128), not stopped by sparkwright",
    ),
    "one that a run of ours left": (
        {
            "container": make_container(status="exited", exit_code=0, policy="no"),
            "server": Server(),
            "stopping_run": "run-7",
        },
        "down",
        "person",
        "qwen35 exited (0), stopped by sparkwright (run run-7)",
    ),
    "one that is asleep": (
        {
            "container": make_container(status="exited", exit_code=0, policy="no"),
            "restart_policy": "",
            "server": Server(),
            "awake_server": "glm",
        },
        "asleep",
        "",
        "it is the turn of glm",
    ),
    "one that runs out of turn": ({"awake_server": "glm"}, "degraded", "person", "but it is the turn of glm"),
    "an ended one": (
        {"container": make_container(status="exited", exit_code=137), "server": Server()},
        "down",
        "person",
        "137",
    ),
    "none": (
        {"container": make_container(status="absent"), "server": Server()},
        "down",
        "deploy",
        "there is no container",
    ),
    "a dead engine": ({"server": make_server(health_status=503, token="")}, "down", "restart", "503"),
    "one that loads and says so": (
        {
            "server": make_server(health_status=503, token=""),
            "loading": True,
            "has_answered": False,
            "container": make_container(started_s=NOW_S - 20),
        },
        "starting",
        "",
        "starting for 20 s (up to 800 s",
    ),
    "one that was ready and says that it is not": (
        {"server": make_server(health_status=503, token=""), "loading": True},
        "wedged",
        "restart",
        "ready before: no token",
    ),
    "it answered before": ({"server": SILENT}, "down", "restart", "any more"),
    "dead and being restarted": (
        {"container": make_container(status="restarting", exit_code=1), "server": Server()},
        "down",
        "",
        "exited with code 1; restart",
    ),
    "ended with 0 and being restarted": (
        {
            "container": make_container(status="restarting", exit_code=0, restarts=1, finished_s=NOW_S - 4),
            "server": Server(),
        },
        "down",
        "",
        "exited with code 0 4 s ago; restart",
    ),
    "the next start after it ended by itself": (
        {
            "server": SILENT,
            "has_answered": False,
            "container": make_container(started_s=NOW_S - 3, restarts=1, finished_s=NOW_S - 4),
        },
        "down",
        "",
        "qwen35 exited 4 s ago, restarted once; starting for 3 s",
    ),
    "a loop that is not broken yet": (
        {
            "server": SILENT,
            "has_answered": False,
            "container": make_container(started_s=NOW_S - 3, restarts=2, finished_s=NOW_S - 4),
        },
        "crash-looping",
        "",
        "qwen35 exited 4 s ago, restarted 2 times; starting for 3 s",
    ),
    "restarted by hand": (
        {"container": make_container(status="restarting", exit_code=0), "server": Server()},
        "starting",
        "",
        "being restarted",
    ),
    "a start": (
        {"server": SILENT, "has_answered": False, "container": make_container(started_s=NOW_S - 60)},
        "starting",
        "",
        "starting for 60 s",
    ),
    "a slow start": (
        {"server": SILENT, "has_answered": False, "container": make_container(started_s=NOW_S - 799)},
        "starting",
        "",
        "up to 800 s, the last start took 400 s",
    ),
    "too slow a start": (
        {"server": SILENT, "has_answered": False, "container": make_container(started_s=NOW_S - 801)},
        "down",
        "restart",
        "a start may take 800 s",
    ),
    "a start that was never measured": (
        {"server": SILENT, "has_answered": False, "ready_s": None, "container": make_container(started_s=NOW_S - 899)},
        "starting",
        "",
        "up to 900 s",
    ),
    "a loop": ({"crash_loop": "it restarted 4 times within 10 minutes"}, "crash-looping", "person", "4 times"),
    "a broken loop": (
        {
            "container": make_container(status="exited", exit_code=1),
            "server": Server(),
            "stopped_loop": "it restarted 4 times",
        },
        "crash-looping",
        "person",
        "stopped for a crash loop",
    ),
    "no token, nothing to do": ({"server": make_server(token="none")}, "wedged", "restart", "no token within 30 s"),
    "no token beside others": (
        {"server": make_server(token="none", running=2.0)},
        "unknown",
        "",
        "possibly a long prefill; one check can't confirm a stall",
    ),
    "frozen": (
        {"server": make_server(token="", running=2.0), "frozen_s": 300.0},
        "stalled",
        "restart",
        "300 s with 2",
    ),
    "frozen a moment": ({"server": make_server(running=1.0), "frozen_s": 20.0}, "ok", "", "a token"),
    "starved": ({"gpus": (STARVED, STARVED)}, "degraded", "power", "AC power"),
    "starved a moment": ({"gpus": (STARVED, Gpu(47, 60, 2400, 96))}, "ok", "", "a token"),
    "starved and no token": (
        {"gpus": (STARVED, STARVED), "server": make_server(token="none")},
        "wedged",
        "power",
        "no token",
    ),
    "spinning at full clock": ({"gpus": (Gpu(50, 21, 2411, 96),) * 2}, "ok", "", "a token"),
    "slow": ({"speed": Speed(30.0, 47.0, 0.1, "regression", NOW_S)}, "degraded", "person", "30.0 tok/s"),
    "slow host": ({"speed": Speed(9.0, 47.0, 0.1, "host degraded", NOW_S)}, "degraded", "power", "9.0 tok/s"),
    "hot": ({"gpus": (Gpu(96, 60, 2411, 90),)}, "degraded", "person", "96 °C"),
    "little memory": (
        {"machine": replace(FINE.machine, mem_available_bytes=GIB)},
        "degraded",
        "person",
        "1.0 of 120.0",
    ),
    "swapping": ({"machine": replace(FINE.machine, swap_used_bytes=15 * GIB)}, "degraded", "person", "swap"),
    "full disk": ({"machine": replace(FINE.machine, disk_free_bytes=GIB)}, "degraded", "person", "disk"),
    "drift of many files": (
        {"drift": ("env", *(f"model {n}.safetensors" for n in range(14)))},
        *("degraded", "deploy"),
        "state: env, 14 files of its model: 0.safetensors, 1.safetensors, 2.safetensors and 11 more",
    ),
    "drift": ({"drift": ("--max-num-seqs", "model a.safetensors")}, "degraded", "deploy", "--max-num-seqs, model a"),
    "no policy": ({"container": make_container(policy="no")}, "degraded", "deploy", "will not start after a reboot"),
    "an API key": ({"server": make_server(token="refused")}, "unknown", "person", "API key"),
    "no Docker, serving": (
        {"engine_error": "it hangs", "container": Container("qwen35")},
        "unknown",
        "person",
        "it hangs",
    ),
    "a deploy": (
        {"busy": "ops runs deploy", "server": Server(), "container": Container()},
        "unknown",
        "",
        "in progress",
    ),
    "nothing deployed": (
        {"has_verified_server": False, "server": Server(), "container": Container()},
        "unknown",
        "deploy",
        "been verified",
    ),
}


@pytest.mark.parametrize(("changes", "state", "cure", "result"), CASES.values(), ids=CASES.keys())
def test_an_observation_is_evaluated_to_a_state(changes: dict[str, Any], state: str, cure: str, result: str) -> None:
    evaluation = evaluate_observation(replace(FINE, **changes), Limits())
    assert (evaluation.state, evaluation.cure) == (state, cure), evaluation
    assert result in evaluation.why


def test_every_state_has_an_exit_code() -> None:
    assert set(STATES) == set(EXIT_CODES)
    assert {state for _, state, _, _ in CASES.values()} == set(STATES)
    assert (
        EXIT_CODES["starting"] == Exit.OK
        and EXIT_CODES["degraded"] == Exit.CHANGES
        and EXIT_CODES["unknown"] == Exit.INCONCLUSIVE
    )


def test_unknown_values_never_count_as_good() -> None:
    evaluation = evaluate_observation(
        Observation(NOW_S, container=CONTAINER, server=Server("http://127.0.0.1:8000", 200)), Limits()
    )
    levels = {item.check: item.level for item in evaluation.evidence}
    assert levels["stall"] == levels["power"] == levels["memory"] == "unknown"
    assert set(levels) <= set(QUESTIONS)


# Damping: the checks that change the reported state.


FLAPS = ["ok", "down", "ok", "down", "ok"]


@pytest.mark.parametrize(
    ("before", "seen", "message"),
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
def test_the_reported_state_is_damped(before: str | None, seen: str, message: str) -> None:
    assert damp_state(before, seen.split()).state == message  # type: ignore[arg-type]


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
