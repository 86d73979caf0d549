"""The state of a server by its observation: the sentence, the state, the exit code, the causes that have evidence."""

import re
from dataclasses import replace
from typing import Any

import pytest

from sparkwright.doctor.diagnosis import down_causes, evaluate_measurement
from sparkwright.doctor.diagnosis.server_probe import ExpectedRate, Measurement
from sparkwright.doctor.diagnosis.server_state import EXITS, ContainerExit, DiagnosisInput, ProbeResult, evaluate_state
from sparkwright.engines import engine, slowness
from sparkwright.engines.log.state import EngineState, Reading
from sparkwright.health.judging.observation import Limits
from sparkwright.health.record import Container
from sparkwright.measure.throughput import Run
from sparkwright.units import GIB

NOW = 1_800_000_000.0
LIMITS = Limits()
REFUSED = ProbeResult("http://127.0.0.1:8000", health=0, error="refused")
SERVES = ProbeResult("http://127.0.0.1:8000", health=200)
LOADING = ProbeResult("http://127.0.0.1:8000", health=503)
READY = EngineState({"ready": Reading(True, "ready")}, stage="ready")
LOADS = EngineState(stage="weights", shards=(3, 14))


def make_container(status: str = "running", age_s: float = 20.0, **more: Any) -> Container:
    return Container("qwen35", "c" * 64, status, **{"restarts": 0, "started_s": NOW - age_s, **more})


def make_input(**more: Any) -> DiagnosisInput:
    """Return the observation of a server that runs, was verified, and whose last start took 100 s."""
    defaults: dict[str, Any] = {
        "name": "qwen35",
        "was_verified": True,
        "allowed_s": 200.0,
        "ready_s": 100.0,
        "container": make_container(),
    }
    return DiagnosisInput(NOW, **{**defaults, **more})


EXITED = ContainerExit(1, NOW - 20)
PREFILL = "unknown whether it is wedged: 2 requests running, no token for 30 s; it may be a long prefill"
#: what was seen, state, sentence
SEEN: tuple[tuple[DiagnosisInput, str, str], ...] = (
    (
        make_input(container=make_container("exited"), last_exit=EXITED, last_line="RuntimeError: no"),
        "down",
        'no server answers: qwen35 exited (1) 20 s ago, its last line: "RuntimeError: no"',
    ),
    (
        make_input(container=make_container("exited"), last_exit=ContainerExit(137, NOW - 7200, out_of_memory=True)),
        "down",
        "no server answers: qwen35 was OOM-killed (137) 2 h ago",
    ),
    (
        make_input(container=make_container("created"), last_exit=ContainerExit(error="port is already allocated")),
        "down",
        "no server answers: qwen35 was created but never started: port is already allocated",
    ),
    (make_input(container=make_container("paused")), "down", "no server answers: qwen35 is paused"),
    (make_input(container=make_container("absent")), "down", "no server answers: there is no container qwen35"),
    (
        make_input(container=make_container("absent"), was_verified=False),
        "down",
        "no server answers: there is no container qwen35; no server has been verified on this host",
    ),
    (
        make_input(container=make_container("restarting", restarts=1), last_exit=EXITED),
        "down",
        "no server answers: qwen35 exited (1) 20 s ago; Docker is restarting it",
    ),
    (
        make_input(container=make_container("restarting", restarts=4), last_exit=EXITED),
        "crash-looping",
        "no server answers: crash loop: qwen35 exited (1) 20 s ago, 4 restarts so far",
    ),
    (
        make_input(container=make_container(restarts=4), last_exit=EXITED, probe=REFUSED),
        "crash-looping",
        "no server answers: crash loop: qwen35 exited (1) 20 s ago, 4 restarts so far",
    ),
    (
        make_input(container=make_container("exited", policy="no"), last_exit=EXITED, stop_reason="it restarted 4 times within 10 minutes"),
        "crash-looping",
        "no server answers: qwen35 exited (1) 20 s ago; crash loop: it restarted 4 times within 10 minutes",
    ),
    (
        make_input(probe=REFUSED, log=LOADS),
        "starting",
        "no server answers yet: qwen35 has been starting for 20 s (weights, 3 of 14 shards); the last start took 100 s",
    ),
    (
        make_input(container=make_container(age_s=250), probe=REFUSED, log=LOADS),
        "slow start",
        "no server answers: slow start: qwen35 has been starting for 250 s (weights, 3 of 14 shards); the last start took 100 s",
    ),
    (
        make_input(container=make_container(restarts=1), last_exit=EXITED, probe=REFUSED),
        "down",
        "no server answers: qwen35 is starting again for 20 s; the last start took 100 s; qwen35 exited (1) 20 s ago before it",
    ),
    (
        make_input(container=make_container(age_s=900), probe=REFUSED, log=EngineState(readings={"ready": Reading(True, "ready")})),
        "down",
        "no server answers: qwen35 was ready, and http://127.0.0.1:8000 is closed now",
    ),
    (make_input(probe=replace(SERVES, health=503)), "down", "no server answers: /health returns 503: the engine is dead"),
    (
        make_input(probe=replace(SERVES, token="none", waited_s=30)),
        "wedged",
        "no token: the server is wedged: /health returns 200, no other requests, but no token within 30 s",
    ),
    (
        make_input(probe=replace(SERVES, running=2, still_s=61)),
        "stalled",
        "no token: the server is wedged: 2 requests running, no token for 61 s",
    ),
    (
        make_input(engine=engine.get_engine("llama_cpp"), log=EngineState(stage="tensors"), probe=LOADING),
        "starting",
        "no server answers yet: qwen35 has been starting for 20 s (tensors); the last start took 100 s",
    ),
    (
        make_input(engine=engine.get_engine("sglang"), log=READY, probe=LOADING),
        "wedged",
        "no token: the server is wedged: /health returns 503, but it was ready",
    ),
    (make_input(probe=LOADING), "down", "no server answers: /health returns 503: the engine is dead"),
    (make_input(probe=replace(SERVES, running=2, still_s=30)), "unknown", PREFILL),
    (
        make_input(probe=replace(SERVES, running=1, rate=31.0)),
        "busy",
        "not measured: 1 request running at 31.0 tok/s in total; measuring would slow them down",
    ),
    (
        make_input(probe=replace(SERVES, token="refused")),
        "unknown",
        "not measured: the server requires an API key that is not known here",
    ),
    (
        make_input(engine_error="the Docker socket refuses ada", container=make_container("")),
        "unknown",
        "unknown whether a server is running: the Docker socket refuses ada",
    ),
    (
        make_input(engine_error="no answer from the Docker Engine", container=make_container(""), probe=REFUSED),
        "down",
        "no server answers at http://127.0.0.1:8000: no answer from the Docker Engine",
    ),
    (
        make_input(active_run="ada runs deploy", container=make_container("absent")),
        "in progress",
        "in progress: ada runs deploy; no server answers: there is no container qwen35",
    ),
)  # fmt: skip


@pytest.mark.parametrize(("seen", "state", "result"), SEEN, ids=[f"{n}-{row[1]}" for n, row in enumerate(SEEN)])
def test_what_is_seen_is_said(seen: DiagnosisInput, state: str, result: str) -> None:
    judged_state = evaluate_state(seen, LIMITS)
    assert judged_state is not None
    assert (judged_state.state, judged_state.message) == (state, result)
    assert (EXITS[judged_state.state] == 0) == (state == "ok")


def test_a_server_that_gave_a_token_and_has_nothing_to_do_is_to_be_measured() -> None:
    assert evaluate_state(make_input(probe=replace(SERVES, token="made")), LIMITS) is None
    unseen = make_input(
        engine_error="no answer from the Docker Engine",
        container=make_container(""),
        probe=replace(SERVES, token="made"),
    )
    assert evaluate_state(unseen, LIMITS) is None


def test_every_cause_with_evidence_is_told_and_the_measured_ones_come_first() -> None:
    observed = make_input(
        container=make_container("exited", policy="unless-stopped"),
        last_exit=ContainerExit(137, NOW - 20, out_of_memory=True),
        failure=Reading(
            "11.8 of 119.7 GiB were free, and the engine requested 101.7.", "ValueError: Free memory on device"
        ),
        listener="python (pid 7, user ada)",
        port=8000,
        interrupted_run="ada runs deploy since 14:03",
    )
    evidence = slowness.SlownessEvidence(
        ollama=[("qwen3:32b", 20 * GIB)], memory={"MemAvailable": 90 * GIB, "MemTotal": 120 * GIB}
    )
    rows = slowness.rank_causes(
        [*down_causes.causes(observed, LIMITS), *slowness.find_start_causes(evidence, str(observed.failure.value))]
    )
    assert [row.name for row in rows if row.verdict == "found"] == [
        "11.8 of 119.7 GiB were free, and the engine requested 101.7 (utilization 0.85)".partition(" (")[0],
        "it was OOM-killed",
        "its port is in use",
        "an earlier run was interrupted",
        "Ollama holds a model in the shared memory",
    ]
    assert all(row.evidence and row.fix for row in rows if row.verdict == "found")


@pytest.mark.parametrize("out_of_memory", [True, False])
def test_a_killed_server_was_out_of_memory_only_where_docker_says_so(out_of_memory: bool) -> None:
    end = ContainerExit(137, NOW - 20, out_of_memory=out_of_memory)
    causes = {
        cause.name: cause
        for cause in down_causes.causes(
            make_input(container=make_container("exited", policy="no"), last_exit=end), LIMITS
        )
    }
    assert ("it was OOM-killed" in causes) == out_of_memory
    if not out_of_memory:
        stopped = causes["it was stopped manually (docker stop, docker kill)"]
        assert (stopped.verdict, stopped.evidence) == ("possible", "exit code 137: it received a signal")


def test_what_holds_memory_is_no_reason_of_a_death_that_tells_another() -> None:
    evidence = slowness.SlownessEvidence(ollama=[("qwen3:32b", 20 * GIB)])
    assert slowness.find_start_causes(evidence, "unknown argument: --nope.")[0].verdict == "noted"


def test_nothing_explains_the_slowness_of_a_fast_server() -> None:
    evidence = slowness.SlownessEvidence(
        share=1.0, slow=False, ollama=[("qwen3:32b", 20 * GIB)], thinking_tokens=30, answer_tokens=32
    )
    assert {cause.verdict for cause in slowness.find_causes(evidence)} <= {"noted", "unknown", "excluded"}


HOT = slowness.Cause("the GPU is too hot", "found", "96 °C", weight=70)
FULL = slowness.Cause("the disk is full", "found", "0.0 GiB free", weight=90, lowers_rate=False)
BASELINE = ExpectedRate(47.0, 0.1, "baseline")


@pytest.mark.parametrize(
    ("rate", "rows", "slow", "state", "result"),
    [
        (47.0, [], False, "ok", "not slow: 47 of 47 tok/s"),
        (46.96, [FULL], False, "degraded", "not slow: 47 of 47 tok/s; but the disk is full: 0.0 GiB free"),
        (5.7, [FULL], True, "slow", "slow: 5.7 of 47 tok/s; no measured cause"),
        (5.7, [FULL, HOT], True, "slow", "slow: 5.7 of 47 tok/s; the GPU is too hot: 96 °C"),
    ],
)
def test_a_rate_is_explained_by_what_slows_it_and_not_by_what_is_wrong_too(
    rate: float, rows: list[slowness.Cause], slow: bool, state: str, result: str
) -> None:
    judged_state = evaluate_measurement(BASELINE, Measurement([Run("prose", rate, 0.1)]), slow, rows)
    assert (judged_state.state, judged_state.message) == (state, result)


def test_a_rate_that_nobody_expects_and_one_that_others_spoilt_are_no_verdict() -> None:
    runs = [Run("prose", 47.0, 0.1)]
    assert evaluate_measurement(ExpectedRate(), Measurement(runs), None, []).state == "unknown"
    spoilt = evaluate_measurement(BASELINE, Measurement(runs, doubt="this client is too slow"), None, [])
    assert (spoilt.state, EXITS[spoilt.state]) == ("busy", 4)


def test_of_a_slow_one_what_was_measured_comes_before_what_is_supposed() -> None:
    evidence = slowness.SlownessEvidence(
        share=0.12,
        slow=True,
        gpu_degraded=True,
        gpu="SM clock 712 MHz",
        kv_used=0.99,
        thinking_tokens=9,
        answer_tokens=9,
    )
    verdicts = [cause.verdict for cause in slowness.find_causes(evidence)]
    assert verdicts == sorted(verdicts, key=["found", "possible", "unknown", "noted", "excluded"].index)
    names = [cause.name for cause in slowness.find_causes(evidence) if cause.verdict == "found"]
    assert names == ["the GPU is held at a low clock (power fault)", "the KV cache is full"]
    assert re.match("found|possible", verdicts[1])


@pytest.mark.parametrize(
    ("booted_s", "host_loss", "name", "verdict", "evidence"),
    [
        (NOW - 39, "", "the host went down while it was running", "found", "the host had booted 19 s before"),
        (NOW - 39, "the host went down at 02:14", "the host went down while it was running", "found", ": the host went down at 02:14"),
        (NOW - 90_000, "", "the host or the Docker Engine stopped while it was running", "possible", "when the engine started"),
        (None, "", "the host or the Docker Engine stopped while it was running", "possible", "exit code 255"),
    ],
)  # fmt: skip
def test_a_server_that_docker_found_dead_was_stopped_by_nobody(
    booted_s: float | None, host_loss: str, name: str, verdict: str, evidence: str
) -> None:
    """Docker sets exit code 255 if it finds a container dead at its own start."""
    observed = make_input(
        container=make_container("exited"),
        last_exit=ContainerExit(255, NOW - 20),
        booted_s=booted_s,
        host_loss=host_loss,
    )
    causes = down_causes.causes(observed, LIMITS)
    assert [(cause.name, cause.verdict) for cause in causes] == [(name, verdict)]
    assert evidence in causes[0].evidence and "journalctl" in causes[0].fix
    assert not down_causes.has_failed(observed)


@pytest.mark.parametrize(("ready_factor", "is_cause"), [(2.0, True), (3.0, False)])
def test_a_start_is_slow_by_the_limits_of_the_host_s_checks(ready_factor: float, is_cause: bool) -> None:
    limits = Limits(ready_factor=ready_factor)
    observed = make_input(container=make_container(age_s=250), allowed_s=100 * ready_factor, probe=REFUSED, log=LOADS)
    assert ("a slow start" in [cause.name for cause in down_causes.causes(observed, limits)]) is is_cause
