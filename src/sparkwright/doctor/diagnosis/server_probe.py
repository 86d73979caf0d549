"""Requests to the server: /health, its counters, and one token if that disturbs no other requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.doctor.diagnosis.diagnosis_input import DiagnosisInput, Probe
from sparkwright.engines import http as roles
from sparkwright.engines import openai_api
from sparkwright.engines.http import Http
from sparkwright.health.judging.observation import Limits
from sparkwright.health.probe import start_of
from sparkwright.measure import http_probe, server_metrics

HEALTH_S = 5.0
AGAIN_S = 0.5


@dataclass(frozen=True)
class ServerProbe:
    """Probes a server."""

    #: the HTTP interface of its engine
    http: Http
    #: of the server
    url: str
    #: the server's API key
    key: str
    #: the limits of a healthy server
    limits: Limits
    #: the counters of the last check
    remembered: Mapping[str, Any]
    #: waits, seconds
    pause: Callable[[float], None] = time.sleep

    def health(self) -> Probe:
        """Probe /health."""
        found = http_probe.ask(self.url, self.http.health, timeout_s=max(HEALTH_S, self.http.health_s))
        return Probe(self.url, health=found.status, error=found.error)

    def served_name(self, known: str) -> str:
        """Return the model name for requests: the verified one, else the first that the server lists."""
        answer = http_probe.ask(self.url, self.http.models, api_key=self.key, timeout_s=HEALTH_S)
        names = openai_api.served(self.http, answer.json())
        return known if known in names else next(iter(names), known)

    def others(self, probe: Probe, seen: DiagnosisInput) -> Probe:
        """Detect other clients and their token rate: read the counters twice, and for longer if nothing moves."""
        before, at_s = self._counters(), time.monotonic()
        if roles.RUNNING not in before:
            return probe
        self.pause(AGAIN_S)
        after = self._counters()
        moved = _beats(after) - _beats(before)
        running = max(server_metrics.busy(before) or 0.0, server_metrics.busy(after) or 0.0, float(moved > 0))
        if not running or moved > 0:
            return replace(probe, running=running, rate=self._rate(before, after, at_s))
        return self._watched(replace(probe, running=running), seen, before)

    def token(self, probe: Probe, model: str, priority: int) -> Probe:
        """Ask for one token."""
        limit_s = self.limits.token_s
        answer = http_probe.ask_token_check(
            self.http, self.url, model, api_key=self.key, timeout_s=limit_s, priority=priority
        )
        if answer.status == 200 and not answer.failure:
            if lacks := http_probe.missing(self.http, answer.json()):
                return replace(probe, token="error", error=f"200 {lacks}")
            return replace(probe, token="made")
        if answer.status in (401, 403):
            return replace(probe, token="refused")
        if answer.error == "timeout":
            return replace(probe, token="none", waited_s=limit_s)
        message = f"{answer.status}: {answer.message()}" if answer.status else answer.error
        return replace(probe, token="error", error=message)

    def _watched(self, probe: Probe, seen: DiagnosisInput, before: Mapping[str, float]) -> Probe:
        """Watch requests that get no token until one does, they end, or the time is long enough to be sure."""
        still_s = self._still_already_s(seen, _beats(before))
        began_s = time.monotonic() - still_s
        most_s = min(self.limits.frozen_s, max(still_s + AGAIN_S, self.limits.token_s * 2))
        while (now_s := time.monotonic()) - began_s < most_s:
            self.pause(AGAIN_S)
            counters = self._counters()
            if _beats(counters) > _beats(before):
                return replace(probe, rate=self._rate(before, counters, now_s))
            if not server_metrics.busy(counters):
                return replace(probe, running=0.0)
        return replace(probe, still_s=time.monotonic() - began_s)

    def _still_already_s(self, seen: DiagnosisInput, beats: float) -> float:
        """Return how long the counter has been unchanged, according to the last check of the same start."""
        last = self.remembered
        same = last.get("start") == start_of(seen.box) and last.get("heartbeat", last.get("generated")) == beats
        was_busy = last.get("running") or last.get("token") == "none"
        return max(0.0, seen.now_s - float(last["time_s"])) if same and was_busy else 0.0

    def _rate(self, before: Mapping[str, float], after: Mapping[str, float], since_s: float) -> float | None:
        """Return the tokens a second meanwhile; None if there were none, or the engine counts them only when a request ends."""
        generated = after.get(roles.GENERATED, 0.0) - before.get(roles.GENERATED, 0.0)
        return generated / (time.monotonic() - since_s) if generated > 0 and not self.http.apart else None

    def _counters(self) -> dict[str, float]:
        return server_metrics.read(self.http, self.url, self.key)[0]


def _beats(counters: Mapping[str, float]) -> float:
    return counters.get(roles.HEARTBEAT, 0.0)
