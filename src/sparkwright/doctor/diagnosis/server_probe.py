"""Query the server: /health and its counters, and, if that disturbs no other requests, a token and a measured stream."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from sparkwright.doctor.diagnosis.server_state import DiagnosisInput, ProbeResult
from sparkwright.engines import http as engine_http
from sparkwright.engines import openai_api
from sparkwright.health.judging.observation import Limits
from sparkwright.health.probe import start_id
from sparkwright.health.store import CheckHistory
from sparkwright.host import nvidia_smi
from sparkwright.host.containers import container_labels
from sparkwright.host.module import Context
from sparkwright.host.records.baselines import Baselines, build_key
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.measure import gpu_sampler, http_probe, server_counters, stream, throughput
from sparkwright.measure.background import LagSampler, suspend_gc
from sparkwright.measure.http_probe import Target
from sparkwright.measure.server_client import ServerClient
from sparkwright.measure.server_counters import counter_increase, has_foreign_tokens, read_settled_counters
from sparkwright.measure.throughput import Baseline, Measurements, Run

HEALTH_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.5
MEASURED_TOKENS = 64
WARM_UP_TOKENS = 8
STREAM_LIMIT_S = 4.0
REASONING_TOKENS = 32
REASONING_LIMIT_S = 2.0
#: share of the expected rate below which a single stream is conclusive
CONCLUSIVE_SHARE = 0.5
#: share by which a rate may be below the recipe's and still count as expected
RECIPE_TOLERANCE = 0.2


@dataclass(frozen=True)
class ServerProbe:
    """Probes a server."""

    #: the server; its model is not known yet
    target: Target
    #: the limits of a healthy server
    limits: Limits
    #: history saved by the last health check
    history: CheckHistory
    #: waits for a number of seconds
    pause: Callable[[float], None] = time.sleep

    def probe_health(self) -> ProbeResult:
        """Probe /health."""
        url, http = self.target.base_url, self.target.http
        result = http_probe.send_request(url, http.health_path, timeout_s=max(HEALTH_TIMEOUT_S, http.health_timeout_s))
        return ProbeResult(url, health=result.status, error=result.error)

    def query_served_name(self, expected: str) -> str:
        """Return the model name for requests: the expected one if the server lists it or no models, else the first listed one."""
        answer = self.target.send(self.target.http.models_path, timeout_s=HEALTH_TIMEOUT_S)
        names = openai_api.parse_models(self.target.http, answer.json())
        return expected if expected in names else next(iter(names), expected)

    def detect_traffic(self, probe: ProbeResult, server: DiagnosisInput) -> ProbeResult:
        """Detect other clients and their token rate by reading the counters twice, or for longer if requests get no tokens."""
        first_counters, started_s = self._read_counters(), time.monotonic()
        if engine_http.RUNNING not in first_counters:
            return probe
        self.pause(POLL_INTERVAL_S)
        last_counters = self._read_counters()
        progress = _heartbeat(last_counters) - _heartbeat(first_counters)
        running = max(
            server_counters.count_active_requests(first_counters) or 0.0,
            server_counters.count_active_requests(last_counters) or 0.0,
            float(progress > 0),
        )
        if not running or progress > 0:
            return replace(probe, running=running, rate=self._rate(first_counters, last_counters, started_s))
        return self._watch_stalled(replace(probe, running=running), server, first_counters)

    def probe_token(self, probe: ProbeResult, model: str, priority: int) -> ProbeResult:
        """Request one token."""
        limit_s = self.limits.token_s
        result = http_probe.check_token(replace(self.target, model=model, timeout_s=limit_s), priority=priority)
        return replace(
            probe, token=result.token, error=result.error, waited_s=limit_s if result.token == "none" else 0.0
        )

    def _watch_stalled(
        self, probe: ProbeResult, server: DiagnosisInput, first_counters: Mapping[str, float]
    ) -> ProbeResult:
        """Watch requests that get no tokens until one gets a token, they end, or enough time has passed to be sure."""
        stalled_s = self._known_stall_s(server, _heartbeat(first_counters))
        began_s = time.monotonic() - stalled_s
        max_watch_s = min(self.limits.frozen_s, max(stalled_s + POLL_INTERVAL_S, self.limits.token_s * 2))
        while (now_s := time.monotonic()) - began_s < max_watch_s:
            self.pause(POLL_INTERVAL_S)
            counters = self._read_counters()
            if _heartbeat(counters) > _heartbeat(first_counters):
                return replace(probe, rate=self._rate(first_counters, counters, now_s))
            if not server_counters.count_active_requests(counters):
                return replace(probe, running=0.0)
        return replace(probe, stalled_s=time.monotonic() - began_s)

    def _known_stall_s(self, server: DiagnosisInput, heartbeat: float) -> float:
        """Return how long, going by the last check, the counter has been unchanged; 0 if the server has been restarted since."""
        since_s = self.history.unchanged_since_s(start_id(server.container), heartbeat)
        return 0.0 if since_s is None else max(0.0, server.now_s - since_s)

    def _rate(
        self, first_counters: Mapping[str, float], last_counters: Mapping[str, float], since_s: float
    ) -> float | None:
        """Return the tokens per second between two readings of the counters.

        None if there were no tokens, or if the engine counts a request's tokens only at its end.
        """
        generated = last_counters.get(engine_http.GENERATED, 0.0) - first_counters.get(engine_http.GENERATED, 0.0)
        return (
            generated / (time.monotonic() - since_s)
            if generated > 0 and not self.target.http.has_separate_heartbeat
            else None
        )

    def _read_counters(self) -> dict[str, float]:
        return server_counters.read_counters(self.target)[0]


def _heartbeat(counters: Mapping[str, float]) -> float:
    return counters.get(engine_http.HEARTBEAT, 0.0)


@dataclass(frozen=True, slots=True)
class ExpectedRate:
    """The expected rate of a single stream."""

    #: tokens per second
    tok_per_s: float | None = None
    #: share that counts as noise
    tolerance: float = RECIPE_TOLERANCE
    #: source of the rate; empty without a rate
    source: Literal["", "baseline", "recipe"] = ""
    baseline: Baseline | None = None

    @classmethod
    def from_verified_state(
        cls, context: Context, verified_state: VerifiedState, recipe_tok_per_s: float | None, *, verified: bool
    ) -> ExpectedRate:
        """Return the verified server's baseline or, without one, the rate that the recipe expects."""
        serve = verified_state.serve
        key = serve.get("baseline_key") or {}
        if verified and key:
            http = container_labels.engine_of_spec(verified_state.spec).http
            baseline = Baselines(context.state).read(build_key(key, context.machine, http))
            if baseline is not None:
                return cls(baseline.median, baseline.tolerance, "baseline", baseline)
        expected_tok_per_s = recipe_tok_per_s or (serve.get("tok_per_s") if verified else None)
        return cls(float(expected_tok_per_s), source="recipe") if expected_tok_per_s else cls()

    def share(self, runs: list[Run]) -> float | None:
        """Return the rate of the runs as a share of the expected rate; None if no rate is expected."""
        if not runs or not self.tok_per_s:
            return None
        return statistics.median(
            self.baseline.share(run) if self.baseline else run.tok_per_s / self.tok_per_s for run in runs
        )


@dataclass
class Measurement(Measurements):
    """The measurement of a stream, and what may have disturbed it."""

    gpu: gpu_sampler.GpuState = field(default_factory=gpu_sampler.GpuState)
    #: True if the GPU is in a low-power state; None if its clock is unknown
    gpu_degraded: bool | None = None
    #: number of reasoning tokens among `response_tokens`, from a stream that set no option for reasoning
    reasoning_tokens: int | None = None
    response_tokens: int = 0
    #: reason why there is no rate
    error: str = ""
    #: reason why the rate is inconclusive
    doubt: str = ""
    #: the server's counters before the measurement
    counters_before: Mapping[str, float] = field(default_factory=dict)
    #: the server's counters after the measurement
    counters_after: Mapping[str, float] = field(default_factory=dict)

    @property
    def tok_per_s(self) -> float | None:
        """The median rate of the runs."""
        return statistics.median(run.tok_per_s for run in self.runs) if self.runs else None

    @property
    def acceptance(self) -> float | None:
        """The number of accepted tokens per draft; None without speculation."""
        counters = (engine_http.DRAFTS, engine_http.ACCEPTED_TOKENS)
        drafts, accepted = (
            counter_increase(self.counters_before, self.counters_after, name) or 0.0 for name in counters
        )
        return accepted / drafts if drafts > 0 else None


def measure_rate(context: Context, target: Target, expected_rate: ExpectedRate) -> Measurement:
    """Measure a stream after a warm-up, and two more streams if the first is inconclusive."""
    measurement = Measurement(counters_before=server_counters.read_counters(target)[0])
    server = ServerClient(target)

    def run_stream(name: str, max_tokens: int) -> stream.Stream:
        return server.run(server.build_request(throughput.build_prompt(name), max_tokens), cap_s=STREAM_LIMIT_S)

    with (
        suspend_gc(),
        LagSampler() as lag_sampler,
        gpu_sampler.GpuSampler(lambda: nvidia_smi.sample_gpu(context.machine)) as sampler,
    ):
        try:
            measurement.add_tokens(run_stream("prose", WARM_UP_TOKENS))
            sampler.discard_samples()
            measurement.add_run("prose", run_stream("prose", MEASURED_TOKENS))
            share = expected_rate.share(measurement.runs)
            is_inconclusive = share is None or CONCLUSIVE_SHARE < share < 1 - expected_rate.tolerance / 2
            for name in ("code", "reasoning") if is_inconclusive else ():
                measurement.add_run(name, run_stream(name, MEASURED_TOKENS))
            _measure_reasoning(measurement, target)
        except stream.StreamError as error:
            measurement.error = str(error)
        measurement.gpu = sampler.state
    if measurement.gpu.has_clock:
        measurement.gpu_degraded = measurement.gpu.is_degraded(
            expected_rate.baseline.clock_mhz if expected_rate.baseline else None
        )
    measurement.counters_after = read_settled_counters(
        lambda: server_counters.read_counters(target)[0],
        lambda counters_after: _describe_other_traffic(measurement, counters_after),
    )
    measurement.doubt = _describe_doubt(measurement, lag_sampler)
    return measurement


def _measure_reasoning(measurement: Measurement, target: Target) -> None:
    """Measure a stream that sets no option for reasoning."""
    body = openai_api.build_stream_request(
        target.http, target.model, throughput.build_prompt("reasoning"), REASONING_TOKENS
    )
    default_body = {name: value for name, value in body.items() if name not in target.http.no_thinking_keys}
    try:
        result = stream.measure_target(target, default_body, cap_s=REASONING_LIMIT_S)
    except stream.StreamError:
        return
    measurement.add_tokens(result)
    measurement.reasoning_tokens, measurement.response_tokens = (
        min(result.thinking_tokens, result.tokens),
        result.tokens,
    )


def _describe_other_traffic(measurement: Measurement, counters_after: Mapping[str, float]) -> str:
    """Describe the traffic of other clients during the measurement; empty if there was none."""
    served_tokens = counter_increase(measurement.counters_before, counters_after, engine_http.GENERATED)
    if (
        served_tokens is not None
        and not measurement.approximate
        and has_foreign_tokens(served_tokens, measurement.tokens, measurement.capped)
    ):
        counts_text = f"{served_tokens:.0f} tokens, only {measurement.tokens} of them for this measurement"
        return f"other traffic: the server generated {counts_text}"
    running = server_counters.count_active_requests(counters_after)
    return f"other traffic: {running:.0f} requests" if running and not measurement.capped else ""


def _describe_doubt(measurement: Measurement, lag_sampler: LagSampler) -> str:
    if lag_sampler.spoils_rates(measurement.decoding_s):
        return f"this client is too slow: it wakes up {lag_sampler.p99_s * 1000:.0f} ms late (p99)"
    return _describe_other_traffic(measurement, measurement.counters_after)
