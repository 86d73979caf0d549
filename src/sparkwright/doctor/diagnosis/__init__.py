"""Diagnose a host's server: inspect it, probe it, measure it if that disturbs no requests, and explain the result.

The result is a one-sentence summary with ranked causes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from sparkwright.doctor.diagnosis import down_causes, inspect, server_state
from sparkwright.doctor.diagnosis.server_probe import ExpectedRate, Measurement, ServerProbe, measure_rate
from sparkwright.doctor.diagnosis.server_state import (
    EXIT_CODES,
    DiagnosisInput,
    RecipeFacts,
    ServerState,
    evaluate_state,
)
from sparkwright.engines import slowness as slow_causes
from sparkwright.engines import tasks
from sparkwright.engines.slowness import Cause
from sparkwright.errors import SparkwrightError
from sparkwright.health.judging.observation import Limits
from sparkwright.health.probe import start_id
from sparkwright.health.record import Gpu
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.host import nvidia_smi
from sparkwright.host.containers import containers, server_key
from sparkwright.host.module import Context
from sparkwright.host.records import verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.measure import gpu_sampler
from sparkwright.measure.http_probe import Target
from sparkwright.trust import secret_patterns
from sparkwright.trust.redact import Redactor

SCHEMA = 1
#: how long a server may take to exit after a request, in seconds
EXIT_TIMEOUT_S = 2.0
POLL_INTERVAL_S = 0.2


@dataclass
class DiagnosisResult:
    """The diagnosis of a host's server."""

    #: observation of the server
    server: DiagnosisInput
    #: state of the server
    state: ServerState
    #: expected rate of a single stream
    expected_rate: ExpectedRate = field(default_factory=ExpectedRate)
    #: the measurement; None if nothing was measured
    measurement: Measurement | None = None
    #: ranked causes; those that could not be determined have the verdict unknown
    causes: Sequence[Cause] = ()
    gpu: gpu_sampler.GpuState = field(default_factory=gpu_sampler.GpuState)

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as plain JSON, in the schema of `diagnose --json` (docs/diagnose.md)."""
        rate = self.measurement.tok_per_s if self.measurement else None
        container = self.server.container
        return {
            "schema": SCHEMA,
            "state": self.state.state,
            "summary": self.state.message,
            "fix": self.state.fix,
            "exit": int(EXIT_CODES[self.state.state]),
            "tok_per_s": rate and round(rate, 1),
            "expected_tok_per_s": self.expected_rate.tok_per_s and round(self.expected_rate.tok_per_s, 1),
            "expected_by": self.expected_rate.source or None,
            "container": {
                "name": self.server.name or None,
                "status": container.status or None,
                "exit_code": self.server.last_exit.code if container.status != "running" else None,
                "restarts": container.restarts,
                "started_s": container.started_s,
            },
            "gpu": self.gpu.to_json(),
            "causes": [cause.to_json() for cause in self.causes],
        }


def diagnose(context: Context, facts: RecipeFacts) -> dict[str, Any]:
    """Diagnose this host's server without changing anything. An idle server gets a few short test requests."""
    verified_state, limits = verified_states.load_last(context.state), Settings.load(context.state).limits
    if facts.token_s:
        limits = replace(limits, token_s=facts.token_s)
    server = inspect.inspect_server(context, verified_state, facts.container, limits, time.time())
    key = facts.key or (server_key.read_container_key(context.state, server.inspected) if server.inspected else "")
    url = inspect.diagnosed_url(server, verified_state) or facts.base_url
    result = _Diagnosis(context, facts, verified_state, limits, url, key).diagnose(server)
    redacted: dict[str, Any] = secret_patterns.mask_texts(Redactor([key]).redact_value(result.to_json()))
    return redacted


@dataclass(frozen=True)
class _Diagnosis:
    """A diagnosis in progress."""

    context: Context
    #: the facts from the user's files
    recipe_facts: RecipeFacts
    #: the last verified state
    verified_state: VerifiedState
    limits: Limits
    #: URL of the server
    url: str
    #: the server's API key
    key: str

    def diagnose(self, server: DiagnosisInput) -> DiagnosisResult:
        """Probe the server, and measure it if that does not disturb requests."""
        if (state := server_state.worker_state(self.context, self.verified_state, server, self.limits)) is not None:
            return self._explain_unmeasured(server, state)
        prober = ServerProbe(
            Target(server.engine.http, self.url, api_key=self.key), self.limits, CheckHistory.load(self.context.state)
        )
        model = ""
        if self.url and server.container.status not in ("exited", "created", "paused", "dead", "absent"):
            server = replace(server, probe=prober.probe_health())
            if server.probe.health == 200 and not server.active_run:
                serve = self.verified_state.serve
                model = prober.query_served_name(str(serve.get("served_name", "")) or self.recipe_facts.model)
                server = self._probe_token(prober, server, model)
        elif self.url and not server.active_run:
            server = _with_listener(server, self.context, self.url)
        state = evaluate_state(server, self.limits) or _other_task_state(server)
        return self._measure(server, model) if state is None else self._explain_unmeasured(server, state)

    def _probe_token(self, prober: ServerProbe, server: DiagnosisInput, model: str) -> DiagnosisInput:
        """Add the result of a token request, unless others are using the server. After an error, inspect it again."""
        probe = prober.detect_traffic(server.probe, server)
        if not probe.running:
            words = list((server.inspected.get("Config") or {}).get("Cmd") or ())
            probe = prober.probe_token(probe, model, server.engine.http.lowest_priority(words))
        server = replace(server, probe=probe)
        return self._inspect_after_error(server) if probe.token == "error" else server

    def _inspect_after_error(self, server: DiagnosisInput) -> DiagnosisInput:
        """Inspect the server again after an error, in case it exited because of the request.

        Its process may still exist for a moment after its last response.
        """
        began_s = time.monotonic()
        while server.inspected and time.monotonic() - began_s < EXIT_TIMEOUT_S:
            server_now = inspect.inspect_again(server, self.context, self.verified_state)
            if (
                start_id(server_now.container) != start_id(server.container)
                or server_now.container.status != server.container.status
            ):
                return replace(server_now, probe=replace(server.probe, token="ended"))
            time.sleep(POLL_INTERVAL_S)
        return server

    def _explain_unmeasured(self, server: DiagnosisInput, state: ServerState) -> DiagnosisResult:
        gpu_sample = gpu_sampler.build_sample(nvidia_smi.sample_gpu(self.context.machine))
        facts = inspect.build_rate_facts(self.context, self.recipe_facts, self.verified_state, server, None, "")
        causes = [
            *down_causes.find_causes(server, self.limits),
            *self._host_causes(server, Gpu(gpu_sample.temperature_c if gpu_sample else None)),
        ]
        if down_causes.has_failed(server):
            causes += slow_causes.find_start_causes(facts, str(down_causes.failure_reason(server).value or ""))
        return DiagnosisResult(
            server,
            state,
            causes=_deduplicate(slow_causes.rank_causes(causes)),
            gpu=gpu_sampler.summarize_samples([gpu_sample] if gpu_sample else []),
        )

    def _measure(self, server: DiagnosisInput, model: str) -> DiagnosisResult:
        expected_rate = ExpectedRate.from_verified_state(
            self.context, self.verified_state, self.recipe_facts.tok_per_s, verified=server.container.verified
        )
        measurement = measure_rate(self.context, Target(server.engine.http, self.url, model, self.key), expected_rate)
        share = None if measurement.doubt or measurement.error else expected_rate.share(measurement.runs)
        is_slow = None if share is None else share < 1 - expected_rate.tolerance
        facts = inspect.build_rate_facts(
            self.context, self.recipe_facts, self.verified_state, server, measurement, self.url
        )
        gpu_state = measurement.gpu
        host_causes = self._host_causes(
            server, Gpu(gpu_state.temperature_c, gpu_state.power_w, gpu_state.clock_mhz, gpu_state.utilization_percent)
        )
        rate_causes = slow_causes.find_causes(replace(facts, share=share, is_slow=is_slow))
        causes = slow_causes.rank_causes([*host_causes, *down_causes.restart_causes(server), *rate_causes])
        if is_slow:  # problems that do not slow tokens down come after the measured causes
            causes.sort(key=lambda cause: cause.verdict != "found" or not cause.lowers_rate)
        return DiagnosisResult(
            server,
            evaluate_measurement(expected_rate, measurement, is_slow, causes),
            expected_rate,
            measurement,
            _deduplicate(causes),
            gpu_state,
        )

    def _host_causes(self, server: DiagnosisInput, gpu: Gpu) -> list[Cause]:
        """Return the causes that lie in the Docker Engine or the host."""
        has_policy = server.container.policy and not server.loop_stop_reason and not server.awake_server
        policy = str(self.verified_state.spec.get("restart", "")) if has_policy else ""
        return [*_docker_causes(server), *down_causes.host_causes(self.context, server, gpu, policy, self.limits)]


def _other_task_state(server: DiagnosisInput) -> ServerState | None:
    """Return the state of a server that does not generate text and so has no rate; None if it generates text."""
    reason, noun = tasks.reason_not_generating(server.engine.http), tasks.result_noun(server.engine.http)
    return ServerState("ok", f"it answers with a {noun}; {reason}, so no throughput is measured") if reason else None


def _with_listener(server: DiagnosisInput, context: Context, url: str) -> DiagnosisInput:
    port = urlsplit(url).port
    try:
        listener = containers.describe_port_holder(context.docker(), port) if port else ""
    except (SparkwrightError, OSError):
        listener = ""
    return replace(server, port=port, listener=listener)


def evaluate_measurement(
    expected: ExpectedRate, measurement: Measurement, is_slow: bool | None, causes: Sequence[Cause]
) -> ServerState:
    """Return the state of a server after a measurement, even a failed or inconclusive one."""
    worst = next((cause for cause in causes if cause.verdict == "found"), None)
    rate = measurement.tok_per_s
    if measurement.error or rate is None:
        message = measurement.error or "the responses had fewer than two tokens"
        return ServerState(
            "degraded", f"it generates a token, but a longer response failed: {message}", "`invoke logs` shows why."
        )
    if measurement.doubt:
        return ServerState(
            "busy", f"throughput inconclusive: {measurement.doubt}", "Try again when nothing else is running."
        )
    if is_slow is None:
        cause_clause = f"; but {_format_cause(worst)}" if worst else ""
        message = (
            f"it serves at {rate:.1f} tok/s; nothing to compare with (no baseline, no `expect.tok_per_s`){cause_clause}"
        )
        return ServerState("degraded" if worst else "unknown", message)
    comparison = f"{_format_rate(rate)} of {_format_rate(expected.tok_per_s or 0)} tok/s"
    if is_slow:
        reason = next((cause for cause in causes if cause.verdict == "found" and cause.lowers_rate), None)
        cause_text = _format_cause(reason) if reason else "no measured cause"
        return ServerState("slow", f"slow: {comparison}; {cause_text}", reason.fix if reason else "")
    if worst:
        return ServerState("degraded", f"not slow: {comparison}; but {_format_cause(worst)}", worst.fix)
    return ServerState("ok", f"not slow: {comparison}")


def _format_rate(rate: float) -> str:
    """Format a number with at most one decimal: 47, 5.7."""
    return f"{round(rate, 1):g}"


def _format_cause(cause: Cause | None) -> str:
    return f"{cause.name}: {cause.evidence}" if cause else ""


def _docker_causes(server: DiagnosisInput) -> list[Cause]:
    """Return the cause in the Docker Engine itself if it does not answer."""
    if not server.engine_error:
        return []
    message = f"{server.engine_error}; cannot inspect the container or read its log"
    return [Cause("no answer from the Docker Engine", "found", message, server.engine_fix, 175, lowers_rate=False)]


def _deduplicate(causes: Sequence[Cause]) -> list[Cause]:
    """Drop causes with the same name as an earlier one. Two rules may find one cause; the first explains more."""
    causes_by_name: dict[str, Cause] = {}
    for cause in causes:
        causes_by_name.setdefault(cause.name, cause)
    return list(causes_by_name.values())
