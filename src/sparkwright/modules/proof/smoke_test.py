from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.engines import http as roles
from sparkwright.engines import openai_api, slowness, tasks
from sparkwright.engines.http import Http
from sparkwright.engines.log import resolution
from sparkwright.errors import Exit, Inconclusive
from sparkwright.host import evidence, nvidia_smi
from sparkwright.host.containers import container_labels, running_server, server_key
from sparkwright.host.module import Context, Module
from sparkwright.host.records.baselines import Baselines, key_of
from sparkwright.host.runs import lock
from sparkwright.measure import background, http_probe, smoke, stream
from sparkwright.measure import speculation as speculation_proof
from sparkwright.measure.background import Lag, undisturbed
from sparkwright.measure.figures import percentile
from sparkwright.measure.http_probe import miscounted, risen, settled
from sparkwright.measure.smoke import Baseline, Bounds, Measured
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.protocol.result import Result, arg
from sparkwright.visible import one_line

IDLE_S = 2.0
#: measurements at most, while this client is held up: the host's processors are often busy for some seconds after a start
ATTEMPTS = 3
#: share of the measured tokens that other servers may generate meanwhile, as for the checks of a gateway
SHARED = 0.05
QUOTED_CHARS = 80
BAD = ("misconfigured", "regression", "invalid")


@dataclass
class Seen:
    """Observations around and during the measurement."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    gpu: background.State
    lag: Lag
    others: Mapping[str, float]  # tokens that other servers of this host generated meanwhile, by container


class SmokeTest(Module["SmokeTest.Args"]):
    """Measure the decode rate of one stream, and compare it with the recipe's expectation and this host's baseline.

    A discarded warm-up, then the median of three runs (seven if unclear). A rate below half of tok_per_s is a
    misconfiguration; a rate above what the memory's bandwidth allows without speculation is an invalid measurement. The
    first measurement of a key (host, model, image digest, arguments, environment, speculation, prompts) becomes its
    baseline, of five runs; later ones are compared with it, and change it only with `new_baseline`. A failure comes with the
    likely causes and the evidence for each.

    It is inconclusive (exit code 4) in other traffic, if the rate is poor while another server of this host generated
    tokens, if the server's counters differ from the client's count by more than 1 %, if the client is too slow, and if the
    GPU is held at a low clock ("host degraded"). In a replacement this is reported and not a failure (`unclear: report`),
    because clients return as soon as a server answers, and another server would not be faster.

    With speculation a baseline also has the acceptance by position; a first position below three quarters of it is a
    regression. Before the first baseline is kept, eight questions are sent as one stream and as eight, at temperature 0 and
    0.7: speculation that gives no answer there, or fewer than half as many correct ones as one greedy stream, fails.

    A server whose tokens come in bursts has no decode rate: tok_per_s is null, and request_tok_per_s is the rate of the
    whole requests.

    Returns: tok_per_s (median), request_tok_per_s (for a server with bursts), ttft_s, runs, verdict, baseline, tolerance,
    ceiling_tok_per_s, acceptance (tokens accepted per draft), acceptance_by_position (the share of drafts accepted at each),
    speculation (correct answers of each load), gpu (clock_mhz, power_w, temperature_c, utilization_percent while decoding),
    client_lag_ms (p99), causes.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        tok_per_s: float | None = arg("the recipe's expected rate of one stream; null: none", default=None)
        baseline_key: dict[str, Any] = arg(
            "identifies comparable measurements: image, model, command, env; empty: no baseline is read or written",
            default_factory=dict,
        )
        tokens: int = arg("tokens per run", default=defaults.SMOKE_TOKENS)
        container: str = arg("container whose log may explain a slow rate; empty: not read", default="")
        model_dir: str = arg("the model's folder, to compute the physical limit; empty: unknown", default="")
        new_baseline: bool = arg("measure a new baseline instead of comparing with the stored one", default=False)
        api_key_secret: str = server_key.secret_arg()
        wait_s: float = arg("how long to wait for another measurement on this host, seconds", default=lock.WAIT_S)
        unclear: Literal["fail", "report"] = arg(
            "report: continue after an inconclusive measurement; the run reports it and exits with code 4",
            default="fail",
        )

    def run(self, args: Args, context: Context) -> Result:
        http = container_labels.engine_at(context, args.base_url).http
        if other := tasks.aside(http):
            return Result(msg=f"no throughput test: {other}", data={"verdict": verdicts.ASIDE, "tok_per_s": None})
        try:
            what, wait_s = "a throughput test", args.wait_s
            with lock.alone(context.state, context.run_id, what, wait_s=wait_s, note=context.note):
                result = self._judged(http, args, context)
        except Inconclusive as error:
            verdict = {"verdict": "inconclusive"}
            result = Result(failed=True, exit=Exit.INCONCLUSIVE, msg=error.message, fix=error.fix, data=verdict)
        if result.exit is Exit.INCONCLUSIVE and args.unclear == "report":
            result.failed, result.data["tok_per_s"] = False, None  # a doubtful figure is no figure of a verified server
        return result

    def _judged(self, http: Http, args: Args, context: Context) -> Result:
        key = server_key.for_probe(context, args.base_url, args.api_key_secret)
        speculation = smoke.speculates(http, args.baseline_key)
        kept, name = Baselines(context.state), key_of(args.baseline_key, context.machine, http)
        baseline = None if args.new_baseline or not args.baseline_key else kept.read(name)
        bounds = Bounds(args.tok_per_s, evidence.ceiling(context, args.model_dir), speculation)
        try:
            found, seen = _measure_undelayed(http, args, context, key, bounds, baseline)
        except stream.StreamError as error:
            return Result(failed=True, msg=f"the measurement was interrupted: {error}.", data={"verdict": "broken"})
        if found.verdict == "new baseline" and not args.baseline_key:
            found.verdict = "not compared"
            found.reason = "no baseline: the running server belongs to no recipe and was never verified"
        accepted = speculation_proof.acceptance(seen.before, seen.after)
        if baseline and found.verdict == "proved" and (fell := speculation_proof.fallen(accepted, baseline.acceptance)):
            found.verdict, found.reason = "regression", fell
        data = _data(found, seen, bounds, baseline, accepted)
        if found.verdict == "new baseline" and (nearest := kept.nearest(name)) is not None:
            other = f"{nearest.baseline.median:.1f} tok/s with another {', '.join(nearest.differs)}"
            found.note = f"the nearest baseline: {other}"
        if found.only_thinking and (hidden := _hidden_answer(http, args, key)):
            parser = container_labels.engine_at(context, args.base_url).probe_flags.causes.get(
                "thinking in content", ""
            )
            fix = f"Likely cause: {parser}." if parser else ""
            return Result(failed=True, msg=hidden, fix=fix, data={**data, "verdict": "misconfigured"})
        doubt = _doubt(found, seen, baseline)
        if doubt is not None:
            data["verdict"], message, fix = doubt
            return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=f"{message}.", fix=fix, data=data)
        if found.verdict in BAD:
            return _failed(found, seen, baseline, args, context, data)
        if found.verdict == "new baseline":
            if speculation and (broken := _broken_speculation(http, args, context, key, data)):
                return broken
            positions = accepted.positions if accepted else ()
            made = Baseline.of(found.runs, by_prompt=speculation, clock_mhz=seen.gpu.clock_mhz, acceptance=positions)
            about = {"driver": (context.facts.get("gpu") or {}).get("driver"), "since": time.time()}
            kept.write(name, made, {**about, **_witnesses(args, seen, context)})
        elif baseline is not None and found.verdict == "proved" and "gpu" not in kept.about(name):
            kept.add(name, _witnesses(args, seen, context))
        data["kernels"] = kept.about(name).get("kernels", {}) if args.baseline_key else {}
        witness = seen.gpu.stalled((kept.about(name).get("gpu") or {}).get("power_w")) if baseline else ""
        return Result(
            msg="; ".join(filter(None, (_sentence(found), _accepted(data["acceptance_by_position"]), witness))),
            data=data,
        )


def _measure_undelayed(
    http: Http, args: SmokeTest.Args, context: Context, key: str, bounds: Bounds, baseline: Baseline | None
) -> tuple[Measured, Seen]:
    """Return the first measurement during which this client was not held up; the last one if it always was."""
    for attempt in range(1, ATTEMPTS + 1):
        found, seen = _measure(http, args, context, key, bounds, baseline)
        if attempt == ATTEMPTS or not seen.lag.spoils_rates(found.decoding_s):
            break
        context.note(f"measuring again: this client woke up {seen.lag.p99_s * 1000:.0f} ms late (p99)")
    return found, seen


def _measure(
    http: Http, args: SmokeTest.Args, context: Context, key: str, bounds: Bounds, baseline: Baseline | None
) -> tuple[Measured, Seen]:
    others = running_server.generated(context, args.base_url)
    before = http_probe.wait_until_idle(lambda: http_probe.read_counters(http, args.base_url, key)[0], IDLE_S)
    with undisturbed(), Lag() as lag, background.Sampler(lambda: nvidia_smi.sample(context.machine)) as sampler:
        found = smoke.measure(
            http,
            args.base_url,
            args.model,
            bounds=bounds,
            baseline=baseline,
            tokens=args.tokens,
            api_key=key,
            progress=lambda done, total: context.progress(done, total, unit="tokens", text="measuring"),
            decoding=sampler.forget,
        )
        state = sampler.state
    counters = settled(
        lambda: http_probe.read_counters(http, args.base_url, key)[0], lambda now: _mismatch(before, now, found)
    )
    return found, Seen(before, counters, state, lag, running_server.since(context, args.base_url, others))


def _witnesses(args: SmokeTest.Args, seen: Seen, context: Context) -> dict[str, Any]:
    """Return what a baseline is recorded with: the kernels that computed, and how busy the GPU was at which power."""
    state = evidence.log(context, args.container)
    book = container_labels.engine_at(context, args.base_url).log
    gpu_state = {"power_w": seen.gpu.power_w, "utilization_percent": seen.gpu.utilization_percent}
    return {"kernels": resolution.kernel_path(state, book) if state else {}, "gpu": gpu_state}


def _hidden_answer(http: Http, args: SmokeTest.Args, key: str) -> str:
    """Return the sentence about an answer that clients see without `stream` and not with it; "" where there is none."""
    body = openai_api.measured_stream(http, args.model, smoke.prompt(), args.tokens)
    plain = {name: value for name, value in body.items() if name not in ("stream", *http.measured)}
    answer = http_probe.ask_plainly(http, args.base_url, plain, api_key=key, timeout_s=defaults.TOKEN_S)
    content, _ = openai_api.spoken(answer.json())
    if not content:
        return ""
    words = one_line(content, at_most=QUOTED_CHARS)
    return (
        f"streaming clients see no answer: without `stream` the content is {words!r}, with it all of it is `reasoning`."
    )


def _broken_speculation(
    http: Http, args: SmokeTest.Args, context: Context, key: str, data: dict[str, Any]
) -> Result | None:
    """Return the failure of speculation that does not hold with many streams or a temperature; None where it holds."""
    cells = speculation_proof.probe(
        http,
        args.base_url,
        args.model,
        api_key=key,
        timeout_s=defaults.TOKEN_S,
        progress=lambda done, total: context.progress(done, total, unit="loads", text="probing speculation"),
    )
    data["speculation"] = [cell.to_json() for cell in cells]
    why = speculation_proof.failure(cells)
    if not why:
        return None
    fix = "Serve without speculation, or with another method or release: `invoke explain speculation`."
    return Result(
        failed=True, msg=f"speculation breaks the server: {why}.", fix=fix, data={**data, "verdict": "broken"}
    )


def _mismatch(before: Mapping[str, float], after: Mapping[str, float], found: Measured) -> str:
    """Return how the server's token count differs from the client's; empty if it does not, or if the server does not count."""
    served = risen(before, after, roles.GENERATED)
    if served is None or found.approximate or not miscounted(served, found.tokens, found.capped):
        return ""
    return f"the server counted {served:.0f} tokens, the client {found.tokens}"


def _doubt(found: Measured, seen: Seen, baseline: Baseline | None) -> tuple[str, str, str] | None:
    """Return why the measurement proves nothing: verdict, sentence and fix. None if it is valid."""
    if differs := _mismatch(seen.before, seen.after, found):
        return "inconclusive", f"other traffic: {differs}", http_probe.IDLE
    if seen.lag.spoils_rates(found.decoding_s):
        lagging = f"this client is too slow: it wakes up {seen.lag.p99_s * 1000:.0f} ms late (p99)"
        return "inconclusive", lagging, "Check what else uses the host's CPUs (`top`)."
    judged = found.verdict in (*BAD, "new baseline")
    if judged and sum(seen.others.values()) > SHARED * found.tokens:
        busy = ", ".join(f"{name} generated {tokens:.0f} tokens" for name, tokens in seen.others.items())
        return "inconclusive", f"the GPU was shared: {busy} meanwhile", http_probe.IDLE
    if judged and seen.gpu.degraded(baseline.clock_mhz if baseline else None):
        message = f"host degraded: {seen.gpu.sentence}; {found.tok_per_s:.1f} tok/s says nothing about the server"
        return "host degraded", message, "Cut the host's AC power for 60 s (USB-PD); a restart does not fix it."
    return None


def _failed(
    found: Measured, seen: Seen, baseline: Baseline | None, args: SmokeTest.Args, context: Context, data: dict[str, Any]
) -> Result:
    """Return the failure with its likely causes. data: the measured figures, to be registered."""
    wanted = data["expected_tok_per_s"] or (baseline.median if baseline else 0) or found.tok_per_s or 1
    ladder: list[slowness.Cause] = []
    if found.verdict != "invalid":
        state = evidence.log(context, args.container)
        ladder = slowness.likely(
            slowness.Seen(
                share=(statistics.median(found.burst_rates) if found.in_bursts else found.tok_per_s) / wanted,
                gpu=seen.gpu.sentence,
                gpu_degraded=seen.gpu.degraded(baseline.clock_mhz if baseline else None) if seen.gpu.known else None,
                log=state.to_json() if state else None,
                ollama=evidence.ollama(context),
                memory=evidence.memory(context),
                busy=0.0 if seen.before else None,  # the counters agreed, so nobody else was served
                acceptance=data["acceptance"],
                model=str(args.baseline_key.get("model_id", "")),
            )
        )
    runs = ", ".join(f"{run.tok_per_s:.1f}" for run in found.runs)
    rows = [f"runs: {runs} tok/s"] if runs else []
    rows += [
        f"{cause.verdict}: {cause.name}: {cause.evidence}" + (f" -> {cause.fix}" if cause.fix else "")
        for cause in ladder
    ]
    more = {"evidence": rows, "causes": [cause.to_json() for cause in ladder]}
    fix = "" if found.verdict == "invalid" else "Run `invoke diagnose`."
    return Result(failed=True, msg=f"{found.verdict}: {found.reason}.", fix=fix, data={**data, **more})


def _data(
    found: Measured,
    seen: Seen,
    bounds: Bounds,
    baseline: Baseline | None,
    accepted: speculation_proof.Acceptance | None,
) -> dict[str, Any]:
    hits, queries = _delta(seen, roles.PREFIX_HITS), _delta(seen, roles.PREFIX_QUERIES)
    spoiled = seen.lag.spoils_percentiles(found.gap_s)
    return {
        "tok_per_s": round(found.tok_per_s, 1) if found.runs else None,
        "request_tok_per_s": round(statistics.median(found.burst_rates), 1) if found.in_bursts else None,
        "ttft_s": round(found.ttft_s, 3) if found.ttft_s is not None else None,
        "runs": [round(run.tok_per_s, 1) for run in found.runs],
        "verdict": found.verdict,
        "baseline": round(baseline.median, 1) if baseline else None,
        "tolerance": round(baseline.tolerance, 3) if baseline else None,
        "expected_tok_per_s": bounds.expected,
        "ceiling_tok_per_s": round(bounds.ceiling, 1) if bounds.ceiling else None,
        "acceptance": accepted.per_draft if accepted else None,
        "acceptance_by_position": list(accepted.positions) if accepted else [],
        "drafts": accepted.drafts if accepted else None,
        "prefix_hit_share": round(hits / queries, 3) if queries and hits is not None else None,
        "gpu": seen.gpu.to_json(),
        "client_lag_ms": round(seen.lag.p99_s * 1000, 2),
        "itl_p99_ms": None if spoiled else _itl_p99_ms(found),
        "approximate": found.approximate,
    }


def _itl_p99_ms(found: Measured) -> float | None:
    gaps = sorted(gap for run in found.runs for gap in run.gaps_s)
    return round(percentile(gaps, 99) * 1000, 2) if gaps else None


def _delta(seen: Seen, name: str) -> float | None:
    return risen(seen.before, seen.after, name)


def _sentence(found: Measured) -> str:
    if found.in_bursts:
        return f"no decode rate: {found.reason}; no baseline"
    first = f", TTFT {found.ttft_s * 1000:.0f} ms" if found.ttft_s is not None else ""
    counted = " (counted in chunks: approximate)" if found.approximate else ""
    note = f"; {found.note}" if found.note else ""
    return f"{found.tok_per_s:.1f} tok/s (median of {len(found.runs)}){counted}{first}; {found.reason}{note}"


def _accepted(positions: Sequence[float]) -> str:
    """Return the acceptance by position as a clause; "" where nothing is known of it."""
    return f"acceptance by position {speculation_proof.shown(positions)}" if positions else ""
