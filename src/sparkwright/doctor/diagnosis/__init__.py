"""Diagnosing a host's server: inspect it, probe it, measure it if that does not disturb requests, and explain the result.

The result is a sentence with ranked causes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from sparkwright.doctor.diagnosis import down_causes, inspect, server_state
from sparkwright.doctor.diagnosis.server_probe import Expected, Measured, ServerProbe, measure
from sparkwright.doctor.diagnosis.server_state import EXITS, DiagnosisInput, RecipeFacts, ServerState, standing
from sparkwright.engines import slowness as slow_causes
from sparkwright.engines import tasks
from sparkwright.engines.slowness import Cause
from sparkwright.errors import SparkwrightError
from sparkwright.health.judging.observation import Limits
from sparkwright.health.probe import start_of
from sparkwright.health.record import Gpu
from sparkwright.health.settings import Settings
from sparkwright.health.store import CheckHistory
from sparkwright.host import nvidia_smi
from sparkwright.host.containers import containers, server_key
from sparkwright.host.module import Context
from sparkwright.host.records import good_states
from sparkwright.measure import background
from sparkwright.trust import secret_patterns
from sparkwright.trust.redact import Redactor

SCHEMA = 1
#: how long a server may take to exit after a request, in seconds
ENDS_S = 2.0
AGAIN_S = 0.2


@dataclass
class Answer:
    """The diagnosis of a host's server."""

    #: observation of the server
    seen: DiagnosisInput
    #: state of the server
    place: ServerState
    #: expected rate of a single stream
    expected: Expected = field(default_factory=Expected)
    #: the measurement; None if nothing was measured
    measured: Measured | None = None
    #: ranked causes; those that could not be determined have the verdict unknown
    causes: Sequence[Cause] = ()
    gpu: background.State = field(default_factory=background.State)

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as plain JSON, in the schema of `diagnose --json` (docs/diagnose.md)."""
        rate = self.measured.tok_per_s if self.measured else None
        box = self.seen.box
        return {
            "schema": SCHEMA,
            "state": self.place.state,
            "summary": self.place.message,
            "fix": self.place.fix,
            "exit": int(EXITS[self.place.state]),
            "tok_per_s": rate and round(rate, 1),
            "expected_tok_per_s": self.expected.tok_per_s and round(self.expected.tok_per_s, 1),
            "expected_by": self.expected.source or None,
            "container": {
                "name": self.seen.name or None,
                "status": box.status or None,
                "exit_code": self.seen.end.code if box.status != "running" else None,
                "restarts": box.restarts,
                "started_s": box.started_s,
            },
            "gpu": self.gpu.to_json(),
            "causes": [cause.to_json() for cause in self.causes],
        }


def diagnose(context: Context, facts: RecipeFacts) -> dict[str, Any]:
    """Diagnose this host's server without changing anything. An idle server is asked for a token and a few short answers."""
    good, limits = good_states.last(context.state), Settings.of(context.state).limits
    if facts.token_s:
        limits = replace(limits, token_s=facts.token_s)
    seen = inspect.inspect_server(context, good, facts.container, limits, time.time())
    key = facts.key or (server_key.of_container(context.state, seen.inspected) if seen.inspected else "")
    answer = _Diagnosis(context, facts, good, limits, inspect.url_of(seen, good) or facts.base_url, key).of(seen)
    shown: dict[str, Any] = secret_patterns.leaves(Redactor([key]).value(answer.to_json()))
    return shown


@dataclass(frozen=True)
class _Diagnosis:
    """A diagnosis in progress."""

    context: Context
    #: the facts from the user's files
    asked: RecipeFacts
    #: the last verified state
    good: Mapping[str, Any]
    limits: Limits
    #: URL of the server
    url: str
    #: the server's API key
    key: str

    def of(self, seen: DiagnosisInput) -> Answer:
        """Probe the server, and measure it if that does not disturb requests."""
        if (place := server_state.worker_standing(self.context, self.good, seen)) is not None:
            return self._not_measured(seen, place)
        asking = ServerProbe(seen.engine.http, self.url, self.key, self.limits, CheckHistory.of(self.context.state))
        model = ""
        if self.url and seen.box.status not in ("exited", "created", "paused", "dead", "absent"):
            seen = replace(seen, probe=asking.health())
            if seen.probe.health == 200 and not seen.busy:
                serve = self.good.get("serve") or {}
                model = asking.served_name(str(serve.get("served_name", "")) or self.asked.model)
                seen = self._with_token(asking, seen, model)
        elif self.url and not seen.busy:
            seen = _with_listener(seen, self.context, self.url)
        place = standing(seen, self.limits) or _of_another_task(seen)
        return self._measured(seen, model) if place is None else self._not_measured(seen, place)

    def _with_token(self, asking: ServerProbe, seen: DiagnosisInput, model: str) -> DiagnosisInput:
        """Add the result of a token request, unless others are using the server. It is inspected again if it exited."""
        probe = asking.others(seen.probe, seen)
        if not probe.running:
            words = list((seen.inspected.get("Config") or {}).get("Cmd") or ())
            probe = asking.token(probe, model, asking.http.low_priority(words))
        seen = replace(seen, probe=probe)
        return self._after_an_error(seen) if probe.token == "error" else seen

    def _after_an_error(self, seen: DiagnosisInput) -> DiagnosisInput:
        """Inspect the server again after an error, in case it exited because of the request.

        Its process outlives its last answer by a moment.
        """
        began_s = time.monotonic()
        while seen.inspected and time.monotonic() - began_s < ENDS_S:
            now = inspect.again(seen, self.context, self.good)
            if start_of(now.box) != start_of(seen.box) or now.box.status != seen.box.status:
                return replace(now, probe=replace(seen.probe, token="ended"))
            time.sleep(AGAIN_S)
        return seen

    def _not_measured(self, seen: DiagnosisInput, place: ServerState) -> Answer:
        now = background.sample_of(nvidia_smi.sample(self.context.machine))
        about = inspect.seen(self.context, self.asked, self.good, seen, None, "")
        rows = [*down_causes.causes(seen), *self._of_host(seen, Gpu(now.temperature_c if now else None))]
        if down_causes.failed(seen):
            rows += slow_causes.of_a_start(about, str(down_causes.last_words(seen).value or ""))
        return Answer(
            seen, place, causes=_named_once(slow_causes.ranked(rows)), gpu=background.summed([now] if now else [])
        )

    def _measured(self, seen: DiagnosisInput, model: str) -> Answer:
        expected = Expected.of(self.context, self.good, self.asked.tok_per_s, verified=seen.box.verified)
        found = measure(self.context, seen.engine.http, self.url, model, self.key, expected)
        share = None if found.doubt or found.error else expected.share(found.runs)
        slow = None if share is None else share < 1 - expected.tolerance
        about = inspect.seen(self.context, self.asked, self.good, seen, found, self.url)
        state = found.gpu
        host = self._of_host(seen, Gpu(state.temperature_c, state.power_w, state.clock_mhz, state.utilization_percent))
        why = slow_causes.causes(replace(about, share=share, slow=slow))
        rows = slow_causes.ranked([*host, *down_causes.before_now(seen), *why])
        if slow:  # problems that do not slow tokens down come after the measured causes
            rows.sort(key=lambda cause: cause.verdict != "found" or not cause.of_rate)
        return Answer(seen, verdict(expected, found, slow, rows), expected, found, _named_once(rows), state)

    def _of_host(self, seen: DiagnosisInput, now: Gpu) -> list[Cause]:
        """Return the causes in the Docker Engine and the host."""
        granted = seen.box.policy and not seen.broken and not seen.asleep
        policy = str((self.good.get("spec") or {}).get("restart", "")) if granted else ""
        return [*_docker(seen), *down_causes.host_causes(self.context, seen, now, policy, self.limits)]


def _of_another_task(seen: DiagnosisInput) -> ServerState | None:
    """Return the state of a server that answers but does not generate text and so has no rate; None if it generates."""
    other, noun = tasks.aside(seen.engine.http), tasks.noun(seen.engine.http)
    return ServerState("ok", f"it answers with a {noun}; {other}, so no throughput is measured") if other else None


def _with_listener(seen: DiagnosisInput, context: Context, url: str) -> DiagnosisInput:
    port = urlsplit(url).port
    try:
        listener = containers.who_listens(context.docker(), port) if port else ""
    except (SparkwrightError, OSError):
        listener = ""
    return replace(seen, port=port, listener=listener)


def verdict(expected: Expected, found: Measured, slow: bool | None, rows: Sequence[Cause]) -> ServerState:
    """Return the state of a measured server, or the reason why it could not be measured."""
    worst = next((cause for cause in rows if cause.verdict == "found"), None)
    rate = found.tok_per_s
    if found.error or rate is None:
        message = found.error or "the responses had fewer than two tokens"
        return ServerState(
            "degraded", f"it generates a token, but a longer response failed: {message}", "`invoke logs` shows why."
        )
    if found.doubt:
        return ServerState("busy", f"throughput inconclusive: {found.doubt}", "Try again when nothing else is running.")
    if slow is None:
        but = f"; but {_because(worst)}" if worst else ""
        message = f"it serves at {rate:.1f} tok/s; nothing to compare with (no baseline, no `expect.tok_per_s`){but}"
        return ServerState("degraded" if worst else "unknown", message)
    of = f"{_figure(rate)} of {_figure(expected.tok_per_s or 0)} tok/s"
    if slow:
        reason = next((cause for cause in rows if cause.verdict == "found" and cause.of_rate), None)
        why = _because(reason) if reason else "no measured cause"
        return ServerState("slow", f"slow: {of}; {why}", reason.fix if reason else "")
    if worst:
        return ServerState("degraded", f"not slow: {of}; but {_because(worst)}", worst.fix)
    return ServerState("ok", f"not slow: {of}")


def _figure(rate: float) -> str:
    """Format a number with at most one decimal: 47, 5.7."""
    return f"{round(rate, 1):g}"


def _because(cause: Cause | None) -> str:
    return f"{cause.name}: {cause.evidence}" if cause else ""


def _docker(seen: DiagnosisInput) -> list[Cause]:
    """Return the cause in the Docker Engine itself if it does not answer."""
    if not seen.engine_error:
        return []
    message = f"{seen.engine_error}; cannot read its container or log"
    return [Cause("no answer from the Docker Engine", "found", message, seen.engine_fix, 175, of_rate=False)]


def _named_once(rows: Sequence[Cause]) -> list[Cause]:
    """Drop causes with the name of an earlier one, because two rules may find the same and the first explains more."""
    kept: dict[str, Cause] = {}
    for cause in rows:
        kept.setdefault(cause.name, cause)
    return list(kept.values())
