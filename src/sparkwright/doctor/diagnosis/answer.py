"""The whole diagnosis of a host: look, ask, measure where that disturbs nobody, and say it in one sentence with its causes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sparkwright.doctor.diagnosis import down_causes, host_faults, inspect, served
from sparkwright.doctor.diagnosis.asked import Asked
from sparkwright.doctor.diagnosis.asking import Asking
from sparkwright.doctor.diagnosis.measuring import Expected, Measured, measure
from sparkwright.doctor.diagnosis.sight import Sight
from sparkwright.doctor.diagnosis.standing import EXITS, Standing, standing
from sparkwright.engines.vllm import endpoints
from sparkwright.engines.vllm.failures import causes as slow_causes
from sparkwright.engines.vllm.failures.cause import Cause
from sparkwright.errors import SparkwrightError
from sparkwright.health.judging.observation import Limits
from sparkwright.health.probe import start_of
from sparkwright.health.record import Gpu
from sparkwright.health.remembered import Remembered
from sparkwright.health.schedule.settings import Settings
from sparkwright.host import evidence
from sparkwright.host.containers import containers, server_key
from sparkwright.host.module import Context
from sparkwright.host.records import good_states
from sparkwright.measure import gpu
from sparkwright.trust.redact import Redactor

SCHEMA = 1
#: how long a server that exits at a request may take to do so
ENDS_S = 2.0
AGAIN_S = 0.2


@dataclass
class Answer:
    """seen: the server. place: where it stands. measured: None where nothing was. causes: ranked. unknown: what nobody could
    tell, in sentences."""

    seen: Sight
    place: Standing
    expected: Expected = field(default_factory=Expected)
    measured: Measured | None = None
    causes: Sequence[Cause] = ()
    gpu: gpu.State = field(default_factory=gpu.State)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: the schema of `diagnose --json`, docs/diagnose.md."""
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
            "causes": [one.to_json() for one in self.causes],
        }


def diagnose(context: Context, asked: Asked) -> dict[str, Any]:
    """Diagnose this host's server. Changes nothing; of an idle server it asks a token and a few short answers."""
    now_s, good = time.time(), good_states.last(context.state)
    limits = Settings.of(context.state).limits
    if asked.token_s:
        limits = replace(limits, token_s=asked.token_s)
    seen = inspect.inspect_server(context, good, asked.container, limits, now_s)
    url = inspect.url_of(seen, good) or asked.base_url
    key = asked.key or (server_key.of_container(context.state, seen.inspected) if seen.inspected else "")
    answer = _answer(context, asked, good, limits, seen, url, key)
    shown: dict[str, Any] = Redactor([key]).value(answer.to_json())
    return shown


def _answer(
    context: Context, asked: Asked, good: Mapping[str, Any], limits: Limits, seen: Sight, url: str, key: str
) -> Answer:
    asking = Asking(url, key, limits, Remembered.of(context.state).counted)
    model = ""
    if url and seen.box.status not in ("exited", "created", "paused", "dead", "absent"):
        seen = replace(seen, probe=asking.health())
        if seen.probe.health == 200 and not seen.busy:
            model = asking.served_name(str((good.get("serve") or {}).get("served_name", "")) or asked.model)
            seen = _asked(context, good, asking, seen, model)
    elif url and not seen.busy:
        seen = _with_listener(seen, context, url)
    place = standing(seen, limits)
    if place is not None:
        return _not_measured(context, asked, good, limits, seen, place)
    expected = Expected.of(context, good, asked.tok_per_s, verified=seen.box.verified)
    found = measure(context, url, model, key, expected)
    return _measured(context, asked, good, limits, seen, expected, found, url)


def _asked(context: Context, good: Mapping[str, Any], asking: Asking, seen: Sight, model: str) -> Sight:
    """With what came of asking for a token, unless others use it. A server that ended at the request is inspected again."""
    probe = asking.others(seen.probe, seen)
    if probe.running:
        return replace(seen, probe=probe)
    words = list((seen.inspected.get("Config") or {}).get("Cmd") or ())
    probe = asking.token(probe, model, endpoints.low_priority(words))
    return (
        _after_an_error(context, good, replace(seen, probe=probe))
        if probe.token == "error"
        else replace(seen, probe=probe)
    )


def _after_an_error(context: Context, good: Mapping[str, Any], seen: Sight) -> Sight:
    """Whether the server ended at the request: its process outlives its last answer by a moment."""
    began_s = time.monotonic()
    while seen.inspected and time.monotonic() - began_s < ENDS_S:
        now = inspect.again(seen, context, good)
        if start_of(now.box) != start_of(seen.box) or now.box.status != seen.box.status:
            return replace(now, probe=replace(seen.probe, token="ended"))
        time.sleep(AGAIN_S)
    return seen


def _with_listener(seen: Sight, context: Context, url: str) -> Sight:
    from urllib.parse import urlsplit

    port = urlsplit(url).port
    try:
        listener = containers.who_listens(context.docker(), port) if port else ""
    except (SparkwrightError, OSError):
        listener = ""
    return replace(seen, port=port, listener=listener)


# -- what it means -----------------------------------------------------------------------------------------------------


def _not_measured(
    context: Context, asked: Asked, good: Mapping[str, Any], limits: Limits, seen: Sight, place: Standing
) -> Answer:
    now = gpu.parse(evidence.gpu_query(context))
    host = host_faults.causes(context, seen, Gpu(now.temperature_c if now else None), _policy(good, seen), limits)
    about = served.seen(context, asked, good, seen, None, "")
    start = (
        slow_causes.of_a_start(about, str(down_causes.last_words(seen).value or "")) if down_causes.failed(seen) else []
    )
    rows = slow_causes.ranked([*down_causes.causes(seen), *_docker(seen), *host, *start])
    return Answer(seen, place, causes=_named_once(rows), gpu=gpu.summed([now] if now else []))


def _measured(
    context: Context,
    asked: Asked,
    good: Mapping[str, Any],
    limits: Limits,
    seen: Sight,
    expected: Expected,
    found: Measured,
    url: str,
) -> Answer:
    share = None if found.doubt or found.error else expected.share(found.runs)
    slow = None if share is None else share < 1 - expected.tolerance
    about = replace(served.seen(context, asked, good, seen, found, url), share=share, slow=slow)
    state = found.gpu
    now = Gpu(state.temperature_c, state.power_w, state.clock_mhz, state.utilization)
    host = [*_docker(seen), *host_faults.causes(context, seen, now, _policy(good, seen), limits)]
    rows = slow_causes.ranked([*host, *down_causes.before_now(seen), *slow_causes.causes(about)])
    if slow:
        rows = sorted(rows, key=_beside_the_rate)
    place = verdict(expected, found, slow, rows)
    return Answer(seen, place, expected, found, _named_once(rows), state)


def _beside_the_rate(one: Cause) -> bool:
    """What is wrong too, and makes no token slow: it comes after what was measured to."""
    return one.verdict != "found" or not one.of_rate


def verdict(expected: Expected, found: Measured, slow: bool | None, rows: Sequence[Cause]) -> Standing:
    """The sentence of a server that was measured, or should have been."""
    worst = next((one for one in rows if one.verdict == "found"), None)
    rate = found.tok_per_s
    if found.error or rate is None:
        message = found.error or "the responses had fewer than two tokens"
        return Standing(
            "degraded", f"it generates a token, but a longer response failed: {message}", "`invoke logs` shows why."
        )
    if found.doubt:
        return Standing("busy", f"throughput inconclusive: {found.doubt}", "Try again when nothing else is running.")
    if slow is None:
        but = f"; but {_because(worst)}" if worst else ""
        message = f"it serves at {rate:.1f} tok/s; nothing to compare with (no baseline, no `expect.tok_per_s`){but}"
        return Standing("degraded" if worst else "unknown", message)
    of = f"{_figure(rate)} of {_figure(expected.tok_per_s or 0)} tok/s"
    if slow:
        reason = next((one for one in rows if one.verdict == "found" and one.of_rate), None)
        why = _because(reason) if reason else "no measured cause"
        return Standing("slow", f"slow: {of}; {why}", reason.fix if reason else "")
    if worst:
        return Standing("degraded", f"not slow: {of}; but {_because(worst)}", worst.fix)
    return Standing("ok", f"not slow: {of}")


def _figure(rate: float) -> str:
    """47, 5.7: one decimal where there is one."""
    return f"{round(rate, 1):g}"


def _because(one: Cause | None) -> str:
    return f"{one.name}: {one.evidence}" if one else ""


def _docker(seen: Sight) -> list[Cause]:
    """The Docker Engine itself, and what could not be seen without it."""
    if not seen.engine_error:
        return []
    message = f"{seen.engine_error}; cannot read its container or log"
    return [Cause("no answer from the Docker Engine", "found", message, seen.engine_fix, 175, of_rate=False)]


def _policy(good: Mapping[str, Any], seen: Sight) -> str:
    """The restart policy that was verified, of a container that has one of its own."""
    return str((good.get("spec") or {}).get("restart", "")) if seen.box.policy and not seen.broken else ""


def _named_once(rows: Sequence[Cause]) -> list[Cause]:
    """Two rules may see the same; the first, which explains more, stays."""
    kept: dict[str, Cause] = {}
    for one in rows:
        kept.setdefault(one.name, one)
    return list(kept.values())
