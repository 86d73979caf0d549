"""Asking the server itself: /health, its counters, and one token where that disturbs nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.doctor.diagnosis.sight import Probe, Sight
from sparkwright.engines.vllm import endpoints
from sparkwright.health.judging.observation import Limits
from sparkwright.health.probe import start_of
from sparkwright.measure import http_probe, server_metrics, token_check

HEALTH_S = 5.0
AGAIN_S = 0.5


@dataclass(frozen=True)
class Asking:
    """url, key: of the server. limits: where good ends. remembered: the counters that the last check saw."""

    url: str
    key: str
    limits: Limits
    remembered: Mapping[str, Any]
    pause: Callable[[float], None] = time.sleep

    def health(self) -> Probe:
        """What answers at the port."""
        found = http_probe.ask(self.url, endpoints.HEALTH, timeout_s=HEALTH_S)
        return Probe(self.url, health=found.status, error=found.error)

    def served_name(self, known: str) -> str:
        """The name that requests use: the one that was verified, else the first that the server tells."""
        answer = http_probe.ask(self.url, endpoints.MODELS, api_key=self.key, timeout_s=HEALTH_S)
        names = endpoints.served(answer.json())
        return known if known in names else next(iter(names), known)

    def others(self, probe: Probe, seen: Sight) -> Probe:
        """Whether somebody else uses it, and whether they get their tokens: read twice, and longer where nothing moves."""
        before, at_s = self._counters(), time.monotonic()
        if endpoints.RUNNING not in before:
            return probe
        self.pause(AGAIN_S)
        after = self._counters()
        generated = _generated(after) - _generated(before)
        running = max(server_metrics.busy(before) or 0.0, server_metrics.busy(after) or 0.0, float(generated > 0))
        if not running or generated > 0:
            rate = generated / (time.monotonic() - at_s) if generated > 0 else None
            return replace(probe, running=running, rate=rate)
        return self._watched(replace(probe, running=running), seen, _generated(before))

    def token(self, probe: Probe, model: str, priority: int) -> Probe:
        """Ask for one token."""
        limit_s = self.limits.token_s
        answer = token_check.ask(self.url, model, api_key=self.key, timeout_s=limit_s, priority=priority)
        if answer.status == 200 and not answer.failure:
            if endpoints.tokens_of(answer.json()) > 0:
                return replace(probe, token="made")
            return replace(probe, token="error", error="200 without a token")
        if answer.status in (401, 403):
            return replace(probe, token="refused")
        if answer.error == "timeout":
            return replace(probe, token="none", waited_s=limit_s)
        message = f"{answer.status}: {answer.message()}" if answer.status else answer.error
        return replace(probe, token="error", error=message)

    def _watched(self, probe: Probe, seen: Sight, generated: float) -> Probe:
        """Watch requests that get no token, until one does, they end, or it is long enough to be sure."""
        still_s = self._still_already_s(seen, generated)
        began_s = time.monotonic() - still_s
        most_s = min(self.limits.frozen_s, max(still_s + AGAIN_S, self.limits.token_s * 2))
        while (now_s := time.monotonic()) - began_s < most_s:
            self.pause(AGAIN_S)
            counters = self._counters()
            if _generated(counters) > generated:
                return replace(probe, rate=(_generated(counters) - generated) / (time.monotonic() - now_s))
            if not server_metrics.busy(counters):
                return replace(probe, running=0.0)
        return replace(probe, still_s=time.monotonic() - began_s)

    def _still_already_s(self, seen: Sight, generated: float) -> float:
        """How long the counter has stood where it stands, by what the last check saw of the same start."""
        last = self.remembered
        same = last.get("start") == start_of(seen.box) and last.get("generated") == generated
        asked = last.get("running") or last.get("token") == "none"
        return max(0.0, seen.now_s - float(last["time_s"])) if same and asked else 0.0

    def _counters(self) -> dict[str, float]:
        return server_metrics.read(self.url, self.key)[0]


def _generated(counters: Mapping[str, float]) -> float:
    return counters.get(endpoints.GENERATED_TOKENS, 0.0)
