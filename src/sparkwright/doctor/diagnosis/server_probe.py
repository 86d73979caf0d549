"""Requests to the server: /health, its counters, and a token and a measured stream if that disturbs no other requests."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from sparkwright.doctor.diagnosis.server_state import DiagnosisInput, Probe
from sparkwright.engines import http as roles
from sparkwright.engines import openai_api
from sparkwright.engines.http import Http
from sparkwright.health.judging.observation import Limits
from sparkwright.health.probe import start_of
from sparkwright.health.store import CheckHistory
from sparkwright.host import nvidia_smi
from sparkwright.host.containers import container_labels
from sparkwright.host.module import Context
from sparkwright.host.records.baselines import Baselines, key_of
from sparkwright.measure import background, http_probe, smoke, stream
from sparkwright.measure.asker import Asker
from sparkwright.measure.background import Lag, undisturbed
from sparkwright.measure.http_probe import risen, settled, uncounted
from sparkwright.measure.smoke import Baseline, Run, Taken

HEALTH_S = 5.0
AGAIN_S = 0.5


@dataclass(frozen=True)
class ServerProbe:
    """Probes a server."""

    #: HTTP interface of the engine
    http: Http
    #: URL of the server
    url: str
    #: the server's API key
    key: str
    #: the limits of a healthy server
    limits: Limits
    #: history saved by the last health check
    remembered: CheckHistory
    #: waits for a number of seconds
    pause: Callable[[float], None] = time.sleep

    def health(self) -> Probe:
        """Probe /health."""
        found = http_probe.ask(self.url, self.http.health, timeout_s=max(HEALTH_S, self.http.health_s))
        return Probe(self.url, health=found.status, error=found.error)

    def served_name(self, known: str) -> str:
        """Return the model name for requests, which is the verified one or else the first that the server lists."""
        answer = http_probe.ask(self.url, self.http.models, api_key=self.key, timeout_s=HEALTH_S)
        names = openai_api.served(self.http, answer.json())
        return known if known in names else next(iter(names), known)

    def others(self, probe: Probe, seen: DiagnosisInput) -> Probe:
        """Detect other clients and their token rate, by reading the counters twice, and for longer if nothing moves."""
        before, at_s = self._counters(), time.monotonic()
        if roles.RUNNING not in before:
            return probe
        self.pause(AGAIN_S)
        after = self._counters()
        moved = _beats(after) - _beats(before)
        running = max(http_probe.busy_requests(before) or 0.0, http_probe.busy_requests(after) or 0.0, float(moved > 0))
        if not running or moved > 0:
            return replace(probe, running=running, rate=self._rate(before, after, at_s))
        return self._watched(replace(probe, running=running), seen, before)

    def token(self, probe: Probe, model: str, priority: int) -> Probe:
        """Request one token."""
        limit_s = self.limits.token_s
        made = http_probe.token_check(
            self.http, self.url, model, api_key=self.key, timeout_s=limit_s, priority=priority
        )
        return replace(probe, token=made.token, error=made.error, waited_s=limit_s if made.token == "none" else 0.0)

    def _watched(self, probe: Probe, seen: DiagnosisInput, before: Mapping[str, float]) -> Probe:
        """Watch requests that get no tokens until one gets a token, they end, or enough time has passed to be sure."""
        still_s = self._still_already_s(seen, _beats(before))
        began_s = time.monotonic() - still_s
        most_s = min(self.limits.frozen_s, max(still_s + AGAIN_S, self.limits.token_s * 2))
        while (now_s := time.monotonic()) - began_s < most_s:
            self.pause(AGAIN_S)
            counters = self._counters()
            if _beats(counters) > _beats(before):
                return replace(probe, rate=self._rate(before, counters, now_s))
            if not http_probe.busy_requests(counters):
                return replace(probe, running=0.0)
        return replace(probe, still_s=time.monotonic() - began_s)

    def _still_already_s(self, seen: DiagnosisInput, beats: float) -> float:
        """Return how long the counter has been unchanged, according to the last check, if the server was not restarted since."""
        since_s = self.remembered.still_since_s(start_of(seen.box), beats)
        return 0.0 if since_s is None else max(0.0, seen.now_s - since_s)

    def _rate(self, before: Mapping[str, float], after: Mapping[str, float], since_s: float) -> float | None:
        """Return the tokens per second in between; None if there were none, or if the engine counts them when a request ends."""
        generated = after.get(roles.GENERATED, 0.0) - before.get(roles.GENERATED, 0.0)
        return generated / (time.monotonic() - since_s) if generated > 0 and not self.http.apart else None

    def _counters(self) -> dict[str, float]:
        return http_probe.read_counters(self.http, self.url, self.key)[0]


def _beats(counters: Mapping[str, float]) -> float:
    return counters.get(roles.HEARTBEAT, 0.0)


TOKENS = 64
WARM_UP_TOKENS = 8
CAP_S = 4.0
THINKS_TOKENS = 32
THINKS_S = 2.0
#: share of the expected rate below which a single stream is conclusive
PLAIN = 0.5
#: share by which a rate may be below the recipe's and still be as expected
RECIPE_TOLERANCE = 0.2


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected rate of a single stream."""

    #: tokens per second
    tok_per_s: float | None = None
    #: share that counts as noise
    tolerance: float = RECIPE_TOLERANCE
    #: source of the rate; empty for none
    source: Literal["", "baseline", "recipe"] = ""
    baseline: Baseline | None = None

    @classmethod
    def of(
        cls, context: Context, good: Mapping[str, Any], recipe_tok_per_s: float | None, *, verified: bool
    ) -> Expected:
        """Return the baseline if this is the verified server, or else the rate that the recipe expects."""
        serve = good.get("serve") or {}
        key = serve.get("baseline_key") or {}
        if verified and key:
            http = container_labels.engine_of_spec(good.get("spec")).http
            found = Baselines(context.state).read(key_of(key, context.machine, http))
            if found is not None:
                return cls(found.median, found.tolerance, "baseline", found)
        expected = recipe_tok_per_s or (serve.get("tok_per_s") if verified else None)
        return cls(float(expected), source="recipe") if expected else cls()

    def share(self, runs: list[Run]) -> float | None:
        """Return the rate of the runs as a share of the expected rate; None if no rate is expected."""
        if not runs or not self.tok_per_s:
            return None
        return statistics.median(
            self.baseline.share(run) if self.baseline else run.tok_per_s / self.tok_per_s for run in runs
        )


@dataclass
class Measured(Taken):
    """The measurement of a stream, and what may have disturbed it."""

    gpu: background.State = field(default_factory=background.State)
    #: True if the GPU is in a low-power state; None if its clock is unknown
    gpu_degraded: bool | None = None
    #: reasoning tokens among `answered`, from a stream that set no option for reasoning
    thought: int | None = None
    answered: int = 0
    #: reason why there is no rate
    error: str = ""
    #: reason why the rate is inconclusive
    doubt: str = ""
    #: the server's counters before the measurement
    before: Mapping[str, float] = field(default_factory=dict)
    #: the server's counters after the measurement
    after: Mapping[str, float] = field(default_factory=dict)

    @property
    def tok_per_s(self) -> float | None:
        """The median rate of the runs."""
        return statistics.median(run.tok_per_s for run in self.runs) if self.runs else None

    @property
    def acceptance(self) -> float | None:
        """The number of accepted tokens per draft; None without speculation."""
        counters = (roles.DRAFTS, roles.ACCEPTED_TOKENS)
        drafts, accepted = (risen(self.before, self.after, name) or 0.0 for name in counters)
        return accepted / drafts if drafts > 0 else None


def measure(context: Context, http: Http, url: str, model: str, key: str, expected: Expected) -> Measured:
    """Measure a warm-up and a stream, and two more if the first is inconclusive."""
    found = Measured(before=http_probe.read_counters(http, url, key)[0])
    asker = Asker(http, model, url, key)

    def asked(name: str, tokens: int) -> stream.Stream:
        return asker.run(asker.request(smoke.prompt(name), tokens), cap_s=CAP_S)

    with undisturbed(), Lag() as lag, background.Sampler(lambda: nvidia_smi.sample(context.machine)) as sampler:
        try:
            found.count(asked("prose", WARM_UP_TOKENS))
            sampler.forget()
            found.take("prose", asked("prose", TOKENS))
            share = expected.share(found.runs)
            unclear = share is None or PLAIN < share < 1 - expected.tolerance / 2
            for name in ("code", "reasoning") if unclear else ():
                found.take(name, asked(name, TOKENS))
            _think(found, http, url, model, key)
        except stream.StreamError as error:
            found.error = str(error)
        found.gpu = sampler.state
    if found.gpu.known:
        found.gpu_degraded = found.gpu.degraded(expected.baseline.clock_mhz if expected.baseline else None)
    found.after = settled(lambda: http_probe.read_counters(http, url, key)[0], lambda after: _others(found, after))
    found.doubt = _doubt(found, lag)
    return found


def _think(found: Measured, http: Http, url: str, model: str, key: str) -> None:
    """Measure a stream that sets no option for reasoning."""
    body = openai_api.measured_stream(http, model, smoke.prompt("reasoning"), THINKS_TOKENS)
    plain = {name: value for name, value in body.items() if name not in http.plain}
    try:
        free = stream.run(url, plain, counted=http.counted, api_key=key, cap_s=THINKS_S)
    except stream.StreamError:
        return
    found.count(free)
    found.thought, found.answered = min(free.thought, free.tokens), free.tokens


def _others(found: Measured, after: Mapping[str, float]) -> str:
    """Describe the traffic of other clients during the measurement; empty if there was none."""
    served = risen(found.before, after, roles.GENERATED)
    if served is not None and not found.approximate and uncounted(served, found.tokens, found.capped):
        return f"other traffic: it generated {served:.0f} tokens, only {found.tokens} for this measurement"
    running = http_probe.busy_requests(after)
    return f"other traffic: {running:.0f} requests" if running and not found.capped else ""


def _doubt(found: Measured, lag: Lag) -> str:
    if lag.spoils_rates(found.decoding_s):
        return f"this client is too slow: it wakes up {lag.p99_s * 1000:.0f} ms late (p99)"
    return _others(found, found.after)
