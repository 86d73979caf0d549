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
from sparkwright.host.records.baselines import Baselines, build_key
from sparkwright.host.runs import lock
from sparkwright.measure import gpu_sampler, http_probe, server_counters, smoke, stream
from sparkwright.measure import speculation as speculation_proof
from sparkwright.measure.background import LagSampler, suspend_gc
from sparkwright.measure.figures import percentile
from sparkwright.measure.server_counters import counter_increase, has_count_mismatch, read_settled_counters
from sparkwright.measure.smoke import Baseline, Bounds, SmokeResult
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.protocol.result import Result, arg
from sparkwright.visible import one_line

IDLE_S = 2.0
#: measurements at most, while this client is held up: the host's processors are often busy for some seconds after a start
MAX_ATTEMPTS = 3
#: share of the measured tokens that other servers may generate meanwhile, as for the checks of a gateway
MAX_SHARED_TOKENS = 0.05
MAX_QUOTED_CHARS = 80
FAILED_VERDICTS = ("misconfigured", "regression", "invalid")


@dataclass
class Observations:
    """Observations around and during the measurement."""

    before: Mapping[str, float]
    after: Mapping[str, float]
    gpu: gpu_sampler.GpuState
    lag: LagSampler
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
        wait_s: float = arg(
            "how long to wait for another measurement on this host, seconds", default=lock.MEASUREMENT_WAIT_S
        )
        unclear: Literal["fail", "report"] = arg(
            "report: continue after an inconclusive measurement; the run reports it and exits with code 4",
            default="fail",
        )

    def run(self, args: Args, context: Context) -> Result:
        http = container_labels.engine_at(context, args.base_url).http
        if reason := tasks.reason_not_generating(http):
            return Result(
                msg=f"no throughput test: {reason}", data={"verdict": verdicts.NOT_REQUESTED, "tok_per_s": None}
            )
        try:
            purpose, wait_s = "a throughput test", args.wait_s
            with lock.acquire_measurement(context.state, context.run_id, purpose, wait_s=wait_s, note=context.note):
                result = self._evaluate(http, args, context)
        except Inconclusive as error:
            verdict = {"verdict": "inconclusive"}
            result = Result(failed=True, exit=Exit.INCONCLUSIVE, msg=error.message, fix=error.fix, data=verdict)
        if result.exit is Exit.INCONCLUSIVE and args.unclear == "report":
            result.failed, result.data["tok_per_s"] = False, None  # a doubtful figure is no figure of a verified server
        return result

    def _evaluate(self, http: Http, args: Args, context: Context) -> Result:
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        speculation = smoke.has_speculation(http, args.baseline_key)
        baselines, name = Baselines(context.state), build_key(args.baseline_key, context.machine, http)
        baseline = None if args.new_baseline or not args.baseline_key else baselines.read(name)
        bounds = Bounds(args.tok_per_s, evidence.max_decode_rate(context, args.model_dir), speculation)
        try:
            measured, observed = _measure_undelayed(http, args, context, key, bounds, baseline)
        except stream.StreamError as error:
            return Result(failed=True, msg=f"the measurement was interrupted: {error}.", data={"verdict": "broken"})
        if measured.verdict == "new baseline" and not args.baseline_key:
            measured.verdict = "not compared"
            measured.reason = "no baseline: the running server belongs to no recipe and was never verified"
        accepted = speculation_proof.acceptance(observed.before, observed.after)
        if (
            baseline
            and measured.verdict == "proved"
            and (drop := speculation_proof.describe_acceptance_drop(accepted, baseline.acceptance))
        ):
            measured.verdict, measured.reason = "regression", drop
        data = _result_data(measured, observed, bounds, baseline, accepted)
        if measured.verdict == "new baseline" and (nearest := baselines.find_nearest(name)) is not None:
            other = f"{nearest.baseline.median:.1f} tok/s with another {', '.join(nearest.differing_fields)}"
            measured.note = f"the nearest baseline: {other}"
        if measured.only_thinking and (hidden := _find_hidden_answer(http, args, key)):
            parser = container_labels.engine_at(context, args.base_url).probe_flags.causes.get(
                "thinking in content", ""
            )
            fix = f"Likely cause: {parser}." if parser else ""
            return Result(failed=True, msg=hidden, fix=fix, data={**data, "verdict": "misconfigured"})
        doubt = _find_doubt(measured, observed, baseline)
        if doubt is not None:
            data["verdict"], message, fix = doubt
            return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=f"{message}.", fix=fix, data=data)
        if measured.verdict in FAILED_VERDICTS:
            return _failed_result(measured, observed, baseline, args, context, data)
        if measured.verdict == "new baseline":
            if speculation and (speculation_failure := _probe_speculation(http, args, context, key, data)):
                return speculation_failure
            positions = accepted.positions if accepted else ()
            new_baseline = Baseline.of(
                measured.runs, by_prompt=speculation, clock_mhz=observed.gpu.clock_mhz, acceptance=positions
            )
            fields = {"driver": (context.facts.get("gpu") or {}).get("driver"), "since": time.time()}
            baselines.write(name, new_baseline, {**fields, **_baseline_conditions(args, observed, context)})
        elif baseline is not None and measured.verdict == "proved" and "gpu" not in baselines.read_about(name):
            baselines.add_about(name, _baseline_conditions(args, observed, context))
        data["kernels"] = baselines.read_about(name).get("kernels", {}) if args.baseline_key else {}
        witness = (
            observed.gpu.describe_stall((baselines.read_about(name).get("gpu") or {}).get("power_w"))
            if baseline
            else ""
        )
        return Result(
            msg="; ".join(
                filter(
                    None, (_describe_measurement(measured), _format_acceptance(data["acceptance_by_position"]), witness)
                )
            ),
            data=data,
        )


def _measure_undelayed(
    http: Http, args: SmokeTest.Args, context: Context, key: str, bounds: Bounds, baseline: Baseline | None
) -> tuple[SmokeResult, Observations]:
    """Return the first measurement during which this client was not held up; the last one if it always was."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        measured, observed = _measure(http, args, context, key, bounds, baseline)
        if attempt == MAX_ATTEMPTS or not observed.lag.spoils_rates(measured.decoding_s):
            break
        context.note(f"measuring again: this client woke up {observed.lag.p99_s * 1000:.0f} ms late (p99)")
    return measured, observed


def _measure(
    http: Http, args: SmokeTest.Args, context: Context, key: str, bounds: Bounds, baseline: Baseline | None
) -> tuple[SmokeResult, Observations]:
    others = running_server.read_generated_tokens(context, args.base_url)
    before = server_counters.wait_until_idle(lambda: server_counters.read_counters(http, args.base_url, key)[0], IDLE_S)
    with (
        suspend_gc(),
        LagSampler() as lag,
        gpu_sampler.GpuSampler(lambda: nvidia_smi.sample_gpu(context.machine)) as sampler,
    ):
        measured = smoke.measure_decode_rate(
            http,
            args.base_url,
            args.model,
            bounds=bounds,
            baseline=baseline,
            tokens=args.tokens,
            api_key=key,
            progress=lambda done, total: context.progress(done, total, unit="tokens", text="measuring"),
            on_decoding=sampler.discard_samples,
        )
        state = sampler.state
    counters = read_settled_counters(
        lambda: server_counters.read_counters(http, args.base_url, key)[0],
        lambda now: _describe_token_mismatch(before, now, measured),
    )
    return measured, Observations(
        before, counters, state, lag, running_server.read_tokens_since(context, args.base_url, others)
    )


def _baseline_conditions(args: SmokeTest.Args, observed: Observations, context: Context) -> dict[str, Any]:
    """Return what a baseline is recorded with: the kernels that computed, and how busy the GPU was at which power."""
    state = evidence.read_engine_state(context, args.container)
    book = container_labels.engine_at(context, args.base_url).log
    gpu_state = {"power_w": observed.gpu.power_w, "utilization_percent": observed.gpu.utilization_percent}
    return {"kernels": resolution.kernel_path(state, book) if state else {}, "gpu": gpu_state}


def _find_hidden_answer(http: Http, args: SmokeTest.Args, key: str) -> str:
    """Return the sentence about an answer that clients see without `stream` and not with it; "" where there is none."""
    body = openai_api.build_stream_request(http, args.model, smoke.build_prompt(), args.tokens)
    plain = {name: value for name, value in body.items() if name not in ("stream", *http.measured)}
    answer = http_probe.send_with_fewer_options(
        http, args.base_url, plain, api_key=key, timeout_s=defaults.TOKEN_TIMEOUT_S
    )
    content, _ = openai_api.parse_answer(answer.json())
    if not content:
        return ""
    quoted = one_line(content, max_chars=MAX_QUOTED_CHARS)
    return f"streaming clients see no answer: without `stream` the content is {quoted!r}, with it all of it is `reasoning`."


def _probe_speculation(
    http: Http, args: SmokeTest.Args, context: Context, key: str, data: dict[str, Any]
) -> Result | None:
    """Return the failure of speculation that does not hold with many streams or a temperature; None where it holds."""
    cells = speculation_proof.query_cells(
        http,
        args.base_url,
        args.model,
        api_key=key,
        timeout_s=defaults.TOKEN_TIMEOUT_S,
        progress=lambda done, total: context.progress(done, total, unit="loads", text="probing speculation"),
    )
    data["speculation"] = [cell.to_json() for cell in cells]
    reason = speculation_proof.describe_failure(cells)
    if not reason:
        return None
    fix = "Serve without speculation, or with another method or release: `invoke explain speculation`."
    return Result(
        failed=True, msg=f"speculation breaks the server: {reason}.", fix=fix, data={**data, "verdict": "broken"}
    )


def _describe_token_mismatch(before: Mapping[str, float], after: Mapping[str, float], measured: SmokeResult) -> str:
    """Return how the server's token count differs from the client's; empty if it does not, or if the server does not count."""
    served = counter_increase(before, after, roles.GENERATED)
    if served is None or measured.approximate or not has_count_mismatch(served, measured.tokens, measured.capped):
        return ""
    return f"the server counted {served:.0f} tokens, the client {measured.tokens}"


def _find_doubt(
    measured: SmokeResult, observed: Observations, baseline: Baseline | None
) -> tuple[str, str, str] | None:
    """Return why the measurement proves nothing: verdict, sentence and fix. None if it is valid."""
    if differs := _describe_token_mismatch(observed.before, observed.after, measured):
        return "inconclusive", f"other traffic: {differs}", server_counters.IDLE_FIX
    if observed.lag.spoils_rates(measured.decoding_s):
        lagging = f"this client is too slow: it wakes up {observed.lag.p99_s * 1000:.0f} ms late (p99)"
        return "inconclusive", lagging, "Check what else uses the host's CPUs (`top`)."
    has_figure = measured.verdict in (*FAILED_VERDICTS, "new baseline")
    if has_figure and sum(observed.others.values()) > MAX_SHARED_TOKENS * measured.tokens:
        busy = ", ".join(f"{name} generated {tokens:.0f} tokens" for name, tokens in observed.others.items())
        return "inconclusive", f"the GPU was shared: {busy} meanwhile", server_counters.IDLE_FIX
    if has_figure and observed.gpu.is_degraded(baseline.clock_mhz if baseline else None):
        message = (
            f"host degraded: {observed.gpu.sentence}; {measured.tok_per_s:.1f} tok/s says nothing about the server"
        )
        return "host degraded", message, "Cut the host's AC power for 60 s (USB-PD); a restart does not fix it."
    return None


def _failed_result(
    measured: SmokeResult,
    observed: Observations,
    baseline: Baseline | None,
    args: SmokeTest.Args,
    context: Context,
    data: dict[str, Any],
) -> Result:
    """Return the failure with its likely causes. data: the measured figures, to be registered."""
    expected = data["expected_tok_per_s"] or (baseline.median if baseline else 0) or measured.tok_per_s or 1
    causes: list[slowness.Cause] = []
    if measured.verdict != "invalid":
        state = evidence.read_engine_state(context, args.container)
        causes = slowness.list_likely_causes(
            slowness.SlownessEvidence(
                share=(statistics.median(measured.burst_rates) if measured.in_bursts else measured.tok_per_s)
                / expected,
                gpu=observed.gpu.sentence,
                gpu_degraded=observed.gpu.is_degraded(baseline.clock_mhz if baseline else None)
                if observed.gpu.known
                else None,
                log=state.to_json() if state else None,
                ollama=evidence.list_ollama_models(context),
                memory=evidence.read_meminfo(context),
                busy=0.0 if observed.before else None,  # the counters agreed, so nobody else was served
                acceptance=data["acceptance"],
                model=str(args.baseline_key.get("model_id", "")),
            )
        )
    runs = ", ".join(f"{run.tok_per_s:.1f}" for run in measured.runs)
    rows = [f"runs: {runs} tok/s"] if runs else []
    rows += [
        f"{cause.verdict}: {cause.name}: {cause.evidence}" + (f" -> {cause.fix}" if cause.fix else "")
        for cause in causes
    ]
    more = {"evidence": rows, "causes": [cause.to_json() for cause in causes]}
    fix = "" if measured.verdict == "invalid" else "Run `invoke diagnose`."
    return Result(failed=True, msg=f"{measured.verdict}: {measured.reason}.", fix=fix, data={**data, **more})


def _result_data(
    measured: SmokeResult,
    observed: Observations,
    bounds: Bounds,
    baseline: Baseline | None,
    acceptance: speculation_proof.Acceptance | None,
) -> dict[str, Any]:
    hits, queries = _counter_delta(observed, roles.PREFIX_HITS), _counter_delta(observed, roles.PREFIX_QUERIES)
    spoiled = observed.lag.spoils_percentiles(measured.gap_s)
    return {
        "tok_per_s": round(measured.tok_per_s, 1) if measured.runs else None,
        "request_tok_per_s": round(statistics.median(measured.burst_rates), 1) if measured.in_bursts else None,
        "ttft_s": round(measured.ttft_s, 3) if measured.ttft_s is not None else None,
        "runs": [round(run.tok_per_s, 1) for run in measured.runs],
        "verdict": measured.verdict,
        "baseline": round(baseline.median, 1) if baseline else None,
        "tolerance": round(baseline.tolerance, 3) if baseline else None,
        "expected_tok_per_s": bounds.expected,
        "ceiling_tok_per_s": round(bounds.ceiling, 1) if bounds.ceiling else None,
        "acceptance": acceptance.per_draft if acceptance else None,
        "acceptance_by_position": list(acceptance.positions) if acceptance else [],
        "drafts": acceptance.drafts if acceptance else None,
        "prefix_hit_share": round(hits / queries, 3) if queries and hits is not None else None,
        "gpu": observed.gpu.to_json(),
        "client_lag_ms": round(observed.lag.p99_s * 1000, 2),
        "itl_p99_ms": None if spoiled else _itl_p99_ms(measured),
        "approximate": measured.approximate,
    }


def _itl_p99_ms(measured: SmokeResult) -> float | None:
    gaps = sorted(gap for run in measured.runs for gap in run.gaps_s)
    return round(percentile(gaps, 99) * 1000, 2) if gaps else None


def _counter_delta(observed: Observations, name: str) -> float | None:
    return counter_increase(observed.before, observed.after, name)


def _describe_measurement(measured: SmokeResult) -> str:
    if measured.in_bursts:
        return f"no decode rate: {measured.reason}; no baseline"
    first = f", TTFT {measured.ttft_s * 1000:.0f} ms" if measured.ttft_s is not None else ""
    counted = " (counted in chunks: approximate)" if measured.approximate else ""
    note = f"; {measured.note}" if measured.note else ""
    return f"{measured.tok_per_s:.1f} tok/s (median of {len(measured.runs)}){counted}{first}; {measured.reason}{note}"


def _format_acceptance(positions: Sequence[float]) -> str:
    """Return the acceptance by position as a clause; "" where nothing is known of it."""
    return f"acceptance by position {speculation_proof.format_positions(positions)}" if positions else ""
