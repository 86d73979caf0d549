"""The measurement of one stream, with the state of the GPU and this client, compared with the expected rate."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sparkwright.engines import http as roles
from sparkwright.engines import openai_api
from sparkwright.engines.http import Http
from sparkwright.host import evidence
from sparkwright.host.containers import container_labels
from sparkwright.host.module import Context
from sparkwright.host.records.baselines import Baselines, key_of
from sparkwright.measure import background, server_metrics, smoke, stream
from sparkwright.measure.asker import Asker
from sparkwright.measure.background import Lag, undisturbed
from sparkwright.measure.server_metrics import risen, settled, uncounted
from sparkwright.measure.smoke import Baseline, Run, Taken

TOKENS = 64
WARM_UP_TOKENS = 8
CAP_S = 4.0
THINKS_TOKENS = 32
THINKS_S = 2.0
#: below this share of the expected rate one stream is proof enough
PLAIN = 0.5
#: this share below the recipe's rate is still as fast as expected
RECIPE_TOLERANCE = 0.2


@dataclass(frozen=True, slots=True)
class Expected:
    """The rate that one stream should have."""

    #: tokens a second
    tok_per_s: float | None = None
    #: the share that is noise
    tolerance: float = RECIPE_TOLERANCE
    #: where the rate is from; empty for none
    source: Literal["", "baseline", "recipe"] = ""
    baseline: Baseline | None = None

    @classmethod
    def of(
        cls, context: Context, good: Mapping[str, Any], recipe_tok_per_s: float | None, *, verified: bool
    ) -> Expected:
        """Return the baseline if this is the verified server, else the rate that the recipe expects."""
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
        """Return the runs as a share of the expected rate; None if there is none."""
        if not runs or not self.tok_per_s:
            return None
        return statistics.median(
            self.baseline.share(run) if self.baseline else run.tok_per_s / self.tok_per_s for run in runs
        )


@dataclass
class Measured(Taken):
    """The measurement of a stream, and what may have disturbed it."""

    gpu: background.State = field(default_factory=background.State)
    #: None if its clock is not known
    gpu_degraded: bool | None = None
    #: reasoning tokens among `answered`, of a stream that set no option for reasoning
    thought: int | None = None
    answered: int = 0
    #: why there is no rate
    error: str = ""
    #: why the rate proves nothing
    doubt: str = ""
    #: the server's counters before it
    before: Mapping[str, float] = field(default_factory=dict)
    #: the server's counters after it
    after: Mapping[str, float] = field(default_factory=dict)

    @property
    def tok_per_s(self) -> float | None:
        """The median of the runs."""
        return statistics.median(run.tok_per_s for run in self.runs) if self.runs else None

    @property
    def acceptance(self) -> float | None:
        """Accepted tokens per draft; None without speculation."""
        counters = (roles.DRAFTS, roles.ACCEPTED_TOKENS)
        drafts, accepted = (risen(self.before, self.after, name) or 0.0 for name in counters)
        return accepted / drafts if drafts > 0 else None


def measure(context: Context, http: Http, url: str, model: str, key: str, expected: Expected) -> Measured:
    """Measure a warm-up, one stream, and two more if the first is not conclusive."""
    found = Measured(before=server_metrics.read(http, url, key)[0])
    asker = Asker(http, model, url, key)

    def asked(name: str, tokens: int) -> stream.Stream:
        return asker.run(asker.request(smoke.prompt(name), tokens), cap_s=CAP_S)

    with undisturbed(), Lag() as lag, background.Sampler(lambda: evidence.gpu_query(context)) as sampler:
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
    found.after = settled(lambda: server_metrics.read(http, url, key)[0], lambda after: _others(found, after))
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
    """Describe the traffic of other clients meanwhile; empty if none is seen."""
    served = risen(found.before, after, roles.GENERATED)
    if served is not None and not found.approximate and uncounted(served, found.tokens, found.capped):
        return f"other traffic: it generated {served:.0f} tokens, only {found.tokens} for this measurement"
    running = server_metrics.busy(after)
    return f"other traffic: {running:.0f} requests" if running and not found.capped else ""


def _doubt(found: Measured, lag: Lag) -> str:
    if lag.spoils_rates(found.decoding_s):
        return f"this client is too slow: it wakes up {lag.p99_s * 1000:.0f} ms late (p99)"
    return _others(found, found.after)
