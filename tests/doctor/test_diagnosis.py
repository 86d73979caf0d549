"""`diagnose` without a host: the state, message and exit code for an observation, and its causes with evidence."""

from dataclasses import replace
from typing import Any

import pytest

from sparkwright.doctor.diagnosis import down_causes, evaluate_measurement
from sparkwright.doctor.diagnosis.server_probe import ExpectedRate, Measurement
from sparkwright.doctor.diagnosis.server_state import (
    EXIT_CODES,
    ContainerExit,
    DiagnosisInput,
    ProbeResult,
    evaluate_state,
)
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


def make_container(status: str = "running", age_s: float = 20.0, **fields: Any) -> Container:
    return Container("qwen35", "c" * 64, status, **{"restarts": 0, "started_s": NOW - age_s, **fields})


def make_input(**fields: Any) -> DiagnosisInput:
    """Return the observation of a running, verified server. Its last start took 100 s."""
    defaults = {"was_verified": True, "max_start_s": 200.0, "ready_s": 100.0, "container": make_container()}
    return DiagnosisInput(NOW, name="qwen35", **{**defaults, **fields})


EXITED = ContainerExit(1, NOW - 20)
EXITED_CONTAINER, ABSENT = make_container("exited"), make_container("absent")
LOOP = "no server answers: crash loop: qwen35 exited (1) 20 s ago, 4 restarts so far"
#: observation, state, message
CASES: tuple[tuple[DiagnosisInput, str, str], ...] = (
    (make_input(container=EXITED_CONTAINER, last_exit=EXITED, last_line="RuntimeError: no"),
     "down", 'no server answers: qwen35 exited (1) 20 s ago, its last log line: "RuntimeError: no"'),
    (make_input(container=EXITED_CONTAINER, last_exit=ContainerExit(137, NOW - 7200, out_of_memory=True)),
     "down", "no server answers: qwen35 was OOM-killed (137) 2 h ago"),
    (make_input(container=make_container("created"), last_exit=ContainerExit(error="port is already allocated")),
     "down", "no server answers: qwen35 was created but never started: port is already allocated"),
    (make_input(container=make_container("paused")), "down", "no server answers: qwen35 is paused"),
    (make_input(container=ABSENT), "down", "no server answers: there is no container qwen35"),
    (make_input(container=ABSENT, was_verified=False),
     "down", "no server answers: there is no container qwen35; no server has been verified on this host"),
    (make_input(container=make_container("restarting", restarts=1), last_exit=EXITED),
     "down", "no server answers: qwen35 exited (1) 20 s ago; Docker is restarting it"),
    (make_input(container=make_container("restarting", restarts=4), last_exit=EXITED), "crash-looping", LOOP),
    (make_input(container=make_container(restarts=4), last_exit=EXITED, probe=REFUSED), "crash-looping", LOOP),
    (make_input(container=make_container("exited", policy="no"), last_exit=EXITED, loop_stop_reason="it restarted 4 times within 10 minutes"),
     "crash-looping", "no server answers: qwen35 exited (1) 20 s ago; crash loop: it restarted 4 times within 10 minutes"),
    (make_input(probe=REFUSED, log=LOADS),
     "starting", "no server answers yet: qwen35 has been starting for 20 s (weights, 3 of 14 shards); the last start took 100 s"),
    (make_input(container=make_container(age_s=250), probe=REFUSED, log=LOADS), "slow start",
     "no server answers: slow start: qwen35 has been starting for 250 s (weights, 3 of 14 shards); the last start took 100 s"),
    (make_input(container=make_container(restarts=1), last_exit=EXITED, probe=REFUSED), "down",
     "no server answers: qwen35 is starting again for 20 s; the last start took 100 s; qwen35 exited (1) 20 s ago before it"),
    (make_input(container=make_container(age_s=900), probe=REFUSED, log=EngineState({"ready": Reading(True, "ready")})),
     "down", "no server answers: qwen35 was ready, but http://127.0.0.1:8000 is closed now"),
    (make_input(probe=LOADING), "down", "no server answers: /health returns 503: the engine is dead"),
    (make_input(probe=replace(SERVES, token="none", waited_s=30)), "wedged",
     "no token: the server is wedged: /health returns 200 and there are no other requests, but no token within 30 s"),
    (make_input(probe=replace(SERVES, running=2, stalled_s=61)),
     "stalled", "no token: the server is wedged: 2 requests running, no token for 61 s"),
    (make_input(engine=engine.get_engine("llama_cpp"), log=EngineState(stage="tensors"), probe=LOADING),
     "starting", "no server answers yet: qwen35 has been starting for 20 s (tensors); the last start took 100 s"),
    (make_input(engine=engine.get_engine("sglang"), log=READY, probe=LOADING),
     "wedged", "no token: the server is wedged: /health returns 503, but it was ready"),
    (make_input(probe=replace(SERVES, running=2, stalled_s=30)), "unknown",
     "unknown whether it is wedged: 2 requests running, no token for 30 s; it may be a long prefill"),
    (make_input(probe=replace(SERVES, running=1, rate=31.0)),
     "busy", "not measured: 1 request running at 31.0 tok/s in total; measuring would slow them down"),
    (make_input(probe=replace(SERVES, token="refused")),
     "unknown", "not measured: the server requires an API key that is not known here"),
    (make_input(engine_error="the Docker socket refuses ada", container=make_container("")),
     "unknown", "unknown whether a server is running: the Docker socket refuses ada"),
    (make_input(engine_error="no answer from the Docker Engine", container=make_container(""), probe=REFUSED),
     "down", "no server answers at http://127.0.0.1:8000: no answer from the Docker Engine"),
    (make_input(active_run="ada runs deploy", container=ABSENT),
     "in progress", "in progress: ada runs deploy; no server answers: there is no container qwen35"),
)  # fmt: skip


@pytest.mark.parametrize(("observed", "state", "message"), CASES, ids=[f"{n}-{row[1]}" for n, row in enumerate(CASES)])
def test_an_observation_is_evaluated_to_a_state_and_a_message(
    observed: DiagnosisInput, state: str, message: str
) -> None:
    evaluation = evaluate_state(observed, LIMITS)
    assert evaluation is not None
    assert (evaluation.state, evaluation.message) == (state, message)
    assert EXIT_CODES[evaluation.state] != 0


def test_the_state_of_an_idle_server_that_generates_depends_on_a_measurement() -> None:
    probe = replace(SERVES, token="made")
    without_docker = {"engine_error": "no answer from the Docker Engine", "container": make_container("")}
    for fields in ({}, without_docker):
        assert evaluate_state(make_input(probe=probe, **fields), LIMITS) is None


def test_every_cause_with_evidence_is_reported_and_measured_causes_come_first() -> None:
    observed = make_input(
        container=make_container("exited", policy="unless-stopped"),
        last_exit=ContainerExit(137, NOW - 20, out_of_memory=True),
        failure=Reading("11.8 of 119.7 GiB were free, and the engine requested 101.7.", "ValueError: Free memory"),
        listener="python (pid 7, user ada)",
        port=8000,
        interrupted_run="ada runs deploy since 14:03",
    )
    evidence = slowness.SlownessEvidence(
        ollama_models=[("qwen3:32b", 20 * GIB)], meminfo={"MemAvailable": 90 * GIB, "MemTotal": 120 * GIB}
    )
    causes = [
        *down_causes.find_causes(observed, LIMITS),
        *slowness.find_start_causes(evidence, str(observed.failure.value)),
    ]
    found = [cause for cause in slowness.rank_causes(causes) if cause.verdict == "found"]
    assert [cause.name for cause in found] == [
        "11.8 of 119.7 GiB were free, and the engine requested 101.7",
        "it was OOM-killed",
        "its port is in use",
        "an earlier run was interrupted",
        "Ollama holds a model in the shared memory",
    ]
    assert all(cause.evidence and cause.fix for cause in found)


def test_the_fix_of_a_hung_engine_does_not_ask_for_an_incident_which_only_failed_runs_have() -> None:
    observed = make_input(probe=replace(SERVES, token="none", waited_s=30))
    (hung,) = (cause for cause in down_causes.find_causes(observed, LIMITS) if cause.name == "the engine is hung")
    assert ("`invoke logs`" in hung.fix, "incident" in hung.fix) == (True, False)


@pytest.mark.parametrize("out_of_memory", [True, False])
def test_a_killed_server_was_oom_killed_only_if_docker_reports_it(out_of_memory: bool) -> None:
    last_exit = ContainerExit(137, NOW - 20, out_of_memory=out_of_memory)
    observed = make_input(container=make_container("exited", policy="no"), last_exit=last_exit)
    causes = {cause.name: cause for cause in down_causes.find_causes(observed, LIMITS)}
    assert ("it was OOM-killed" in causes) == out_of_memory
    if not out_of_memory:
        stopped = causes["it was stopped manually (docker stop, docker kill)"]
        assert (stopped.verdict, stopped.evidence) == ("possible", "exit code 137: it received a signal")


def test_used_memory_is_no_cause_if_the_engine_reports_another_reason() -> None:
    evidence = slowness.SlownessEvidence(ollama_models=[("qwen3:32b", 20 * GIB)])
    assert slowness.find_start_causes(evidence, "unknown argument: --nope.")[0].verdict == "noted"


def test_a_fast_server_has_no_causes_of_slowness() -> None:
    ollama = [("qwen3:32b", 20 * GIB)]
    evidence = slowness.SlownessEvidence(
        share=1.0, is_slow=False, ollama_models=ollama, thinking_tokens=30, answer_tokens=32
    )
    assert {cause.verdict for cause in slowness.find_causes(evidence)} <= {"noted", "unknown", "excluded"}


HOT = slowness.Cause("the GPU is too hot", "found", "96 °C", weight=70)
FULL = slowness.Cause("the disk is full", "found", "0.0 GiB free", weight=90, lowers_rate=False)
BASELINE = ExpectedRate(47.0, 0.1, "baseline")


@pytest.mark.parametrize(
    ("rate", "causes", "slow", "state", "message"),
    [
        (47.0, [], False, "ok", "not slow: 47 of 47 tok/s"),
        (46.96, [FULL], False, "degraded", "not slow: 47 of 47 tok/s; but the disk is full: 0.0 GiB free"),
        (5.7, [FULL], True, "slow", "slow: 5.7 of 47 tok/s; no measured cause"),
        (5.7, [FULL, HOT], True, "slow", "slow: 5.7 of 47 tok/s; the GPU is too hot: 96 °C"),
    ],
)
def test_a_rate_is_explained_only_by_causes_that_lower_it(
    rate: float, causes: list[slowness.Cause], slow: bool, state: str, message: str
) -> None:
    evaluation = evaluate_measurement(BASELINE, Measurement([Run("prose", rate, 0.1)]), slow, causes)
    assert (evaluation.state, evaluation.message) == (state, message)


def test_a_rate_without_a_baseline_or_with_a_doubtful_measurement_is_not_judged() -> None:
    runs = [Run("prose", 47.0, 0.1)]
    assert evaluate_measurement(ExpectedRate(), Measurement(runs), None, []).state == "unknown"
    doubtful = evaluate_measurement(BASELINE, Measurement(runs, doubt="this client is too slow"), None, [])
    assert (doubtful.state, EXIT_CODES[doubtful.state]) == ("busy", 4)


def test_measured_causes_of_slowness_come_before_possible_ones() -> None:
    evidence = slowness.SlownessEvidence(
        share=0.12, is_slow=True, gpu_degraded=True, gpu_state="SM clock 712 MHz", kv_cache_share=0.99, thinking_tokens=9, answer_tokens=9
    )  # fmt: skip
    causes = slowness.find_causes(evidence)
    verdicts = [cause.verdict for cause in causes]
    assert verdicts == sorted(verdicts, key=["found", "possible", "unknown", "noted", "excluded"].index)
    names = [cause.name for cause in causes if cause.verdict == "found"]
    assert names == ["the GPU is held at a low clock (power fault)", "the KV cache is full"]


@pytest.mark.parametrize(
    ("booted_s", "host_outage", "name", "verdict", "evidence"),
    [
        (NOW - 39, "", "the host went down while it was running", "found", "the host had booted 19 s earlier"),
        (NOW - 39, "the host went down at 02:14", "the host went down while it was running", "found", ": the host went down at 02:14"),
        (NOW - 90_000, "", "the host or the Docker Engine stopped while it was running", "possible", "when the engine started"),
        (None, "", "the host or the Docker Engine stopped while it was running", "possible", "exit code 255"),
    ],
)  # fmt: skip
def test_a_container_found_dead_at_dockers_start_was_not_stopped_manually(
    booted_s: float | None, host_outage: str, name: str, verdict: str, evidence: str
) -> None:
    """Docker sets exit code 255 if it finds a container dead at its own start."""
    last_exit = ContainerExit(255, NOW - 20)
    observed = make_input(container=EXITED_CONTAINER, last_exit=last_exit, booted_s=booted_s, host_outage=host_outage)
    causes = down_causes.find_causes(observed, LIMITS)
    assert [(cause.name, cause.verdict) for cause in causes] == [(name, verdict)]
    assert evidence in causes[0].evidence and "journalctl" in causes[0].fix
    assert not down_causes.has_failed(observed)


@pytest.mark.parametrize(("ready_factor", "is_cause"), [(2.0, True), (3.0, False)])
def test_a_slow_start_is_judged_by_the_limits_of_the_health_checks(ready_factor: float, is_cause: bool) -> None:
    limits = Limits(ready_factor=ready_factor)
    observed = make_input(container=make_container(age_s=250), max_start_s=100 * ready_factor, probe=REFUSED, log=LOADS)
    assert ("a slow start" in [cause.name for cause in down_causes.find_causes(observed, limits)]) is is_cause
