"""Module that measures the decode rate of one stream."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.engines import http as engine_http
from sparkwright.engines import openai_api, slowness, tasks
from sparkwright.engines.http import Http
from sparkwright.engines.log import resolution
from sparkwright.errors import Exit, Inconclusive
from sparkwright.host import evidence, nvidia_smi
from sparkwright.host.containers import container_labels, running_server, server_key
from sparkwright.host.module import Context, Module
from sparkwright.host.records.baselines import Baselines, build_key
from sparkwright.host.runs import lock
from sparkwright.measure import gpu_sampler, http_probe, server_counters, stream, throughput
from sparkwright.measure import speculation as speculation_proof
from sparkwright.measure.background import LagSampler, suspend_gc
from sparkwright.measure.figures import percentile
from sparkwright.measure.http_probe import Target
from sparkwright.measure.server_counters import counter_increase, has_count_mismatch, read_settled_counters
from sparkwright.measure.throughput import Baseline, Bounds, SmokeResult
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.protocol.result import Result, arg
from sparkwright.visible import one_line

IDLE_TIMEOUT_S = 2.0
#: attempts while the client is delayed, because the host's CPUs are often busy for a few seconds after a start
MAX_ATTEMPTS = 3
#: tokens that other servers may generate during a measurement, as a share of its tokens; a gateway's checks generate some
MAX_OTHER_TOKENS_SHARE = 0.05
MAX_QUOTED_CHARS = 80
FAILED_VERDICTS = ("misconfigured", "regression", "invalid")


@dataclass
class Observations:
    """Observations around and during the measurement."""

    counters_before: Mapping[str, float]
    counters_after: Mapping[str, float]
    gpu: gpu_sampler.GpuState
    lag: LagSampler
    #: tokens that other servers of this host generated during the measurement, by container
    tokens_of_others: Mapping[str, float]


class SmokeTest(Module["SmokeTest.Args"]):
    """Measure the decode rate of one stream, and compare it with the recipe's expectation and this host's baseline.

    The rate is the median of three runs (seven if unclear) after a discarded warm-up. A rate below half of tok_per_s is a
    misconfiguration; a rate above the memory bandwidth's limit without speculation is an invalid measurement. The first
    measurement of a key (host, model, image digest, arguments, environment, speculation, prompts) has five runs (six with
    speculation) and becomes its baseline. Later measurements are compared with the baseline; only `new_baseline` replaces
    it. A failure lists the likely causes with their evidence.

    The measurement is inconclusive (exit code 4) during other traffic, if the server's counters differ from the client's
    count by more than 1 %, and if the client is too slow. A failure or a first measurement is also inconclusive if another
    server of this host generated tokens meanwhile, or if the GPU is stuck at a low clock ("host degraded"). With `unclear:
    report`, used in replacements, this is reported and not a failure, because clients return as soon as a server answers,
    and another server would not be faster.

    With speculation the baseline includes the acceptance by position; an acceptance at the first position below three
    quarters of the baseline's is a regression. Before the first baseline is saved, eight questions are sent as one stream
    and as eight, at temperature 0 and 0.7. The check fails if a load gets no answer, or fewer than half as many correct
    answers as one greedy stream.

    If tokens arrive in bursts, there is no decode rate: tok_per_s is null, and request_tok_per_s is the rate of the whole
    requests.

    Returns: tok_per_s (median), request_tok_per_s (for tokens in bursts), ttft_s, itl_p99_ms, runs, approximate (tokens were
    counted in chunks), verdict, baseline, tolerance, expected_tok_per_s, ceiling_tok_per_s, drafts, acceptance (tokens
    accepted per draft), acceptance_by_position (share of drafts accepted at each position), prefix_hit_share, speculation
    (correct answers of each load), gpu (clock_mhz, power_w, temperature_c, utilization_percent while decoding),
    client_lag_ms (p99), kernels (the baseline's), causes.
    """

    valid_in_check_mode = False
    loads_server = True

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        tok_per_s: float | None = arg("the recipe's expected rate of one stream; null: none", default=None)
        baseline_key: dict[str, Any] = arg(
            "identifies comparable measurements: image, model, command, env; empty: no baseline is read or written",
            default_factory=dict,
        )
        tokens: int = arg("tokens per run", default=defaults.SMOKE_TOKEN_COUNT)
        container: str = arg("container whose log may explain a slow rate; empty: read no log", default="")
        model_dir: str = arg("the model's folder, to compute the bandwidth limit; empty: no limit", default="")
        new_baseline: bool = arg("measure a new baseline instead of comparing with the stored one", default=False)
        api_key_secret: str = server_key.secret_arg()
        wait_s: float = arg(
            "time limit for waiting for another measurement on this host, seconds", default=lock.MEASUREMENT_WAIT_S
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
            data = {"verdict": "inconclusive"}
            result = Result(failed=True, exit=Exit.INCONCLUSIVE, msg=error.message, fix=error.fix, data=data)
        if result.exit is Exit.INCONCLUSIVE and args.unclear == "report":
            result.failed, result.data["tok_per_s"] = False, None  # never record a doubtful rate for a verified server
        return result

    def _evaluate(self, http: Http, args: Args, context: Context) -> Result:
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        target = Target(http, args.base_url, args.model, key)
        has_speculation = throughput.has_speculation(http, args.baseline_key)
        baselines, baseline_name = Baselines(context.state), build_key(args.baseline_key, context.machine, http)
        baseline = None if args.new_baseline or not args.baseline_key else baselines.read(baseline_name)
        bounds = Bounds(args.tok_per_s, evidence.max_decode_rate(context, args.model_dir), has_speculation)
        try:
            measurement, observations = _measure_undelayed(target, args, context, bounds, baseline)
        except stream.StreamError as error:
            return Result(failed=True, msg=f"the measurement was interrupted: {error}.", data={"verdict": "broken"})
        acceptance = speculation_proof.compute_acceptance(observations.counters_before, observations.counters_after)
        _complete_verdict(measurement, acceptance, baseline, is_comparable=bool(args.baseline_key))
        data = _result_data(measurement, observations, bounds, baseline, acceptance)
        if failure := _find_failure(target, measurement, observations, baseline, args, context, data):
            return failure
        is_new = measurement.verdict == "new baseline"
        if is_new and (nearest := baselines.find_nearest(baseline_name)) is not None:
            differences = ", ".join(nearest.differing_fields)
            measurement.note = f"the nearest baseline: {nearest.baseline.median:.1f} tok/s with another {differences}"
        if is_new and has_speculation and (failure := _probe_speculation(target, context, data)):
            return failure
        if is_new and not context.check:
            positions, clock_mhz = acceptance.positions if acceptance else (), observations.gpu.clock_mhz
            new_baseline = Baseline.from_runs(
                measurement.runs, by_prompt=has_speculation, clock_mhz=clock_mhz, acceptance=positions
            )
            fields = {"driver": (context.facts.get("gpu") or {}).get("driver"), "since": time.time()}
            conditions = {**fields, **_baseline_conditions(args, observations, context)}
            baselines.write(baseline_name, new_baseline, conditions)
        else:
            conditions = baselines.read_conditions(baseline_name) if args.baseline_key else {}
            if baseline and measurement.verdict == "proved" and "gpu" not in conditions and not context.check:
                conditions |= _baseline_conditions(args, observations, context)
                baselines.add_conditions(baseline_name, conditions)
        data["kernels"] = conditions.get("kernels", {})
        parts = [_describe_measurement(measurement)]
        if acceptance and acceptance.positions:
            parts.append(f"acceptance by position {speculation_proof.format_positions(acceptance.positions)}")
        if baseline and (stall := observations.gpu.describe_stall((conditions.get("gpu") or {}).get("power_w"))):
            parts.append(stall)
        return Result(msg="; ".join(parts), data=data)


def _complete_verdict(
    measurement: SmokeResult,
    acceptance: speculation_proof.Acceptance | None,
    baseline: Baseline | None,
    *,
    is_comparable: bool,
) -> None:
    """Change the verdict of a measurement that can't become a baseline, or whose drafts are accepted less often than before."""
    if measurement.verdict == "new baseline" and not is_comparable:
        measurement.verdict = "not compared"
        measurement.reason = "no baseline: the running server belongs to no recipe and was never verified"
    elif measurement.verdict == "proved" and baseline:
        drop = speculation_proof.describe_acceptance_drop(acceptance, baseline.acceptance)
        if drop:
            measurement.verdict, measurement.reason = "regression", drop


def _measure_undelayed(
    target: Target, args: SmokeTest.Args, context: Context, bounds: Bounds, baseline: Baseline | None
) -> tuple[SmokeResult, Observations]:
    """Return the first measurement during which this client was not delayed, or the last one of MAX_ATTEMPTS."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        measurement, observations = _measure(target, args, context, bounds, baseline)
        if attempt == MAX_ATTEMPTS or not observations.lag.spoils_rates(measurement.decoding_s):
            break
        context.note(f"measuring again: this client woke up {observations.lag.p99_s * 1000:.0f} ms late (p99)")
    return measurement, observations


def _measure(
    target: Target, args: SmokeTest.Args, context: Context, bounds: Bounds, baseline: Baseline | None
) -> tuple[SmokeResult, Observations]:
    def read_counters() -> Mapping[str, float]:
        return server_counters.read_counters(target)[0]

    tokens_before = running_server.read_generated_tokens(context, args.base_url)
    counters_before = server_counters.wait_until_idle(read_counters, IDLE_TIMEOUT_S)
    with (
        suspend_gc(),
        LagSampler() as lag_sampler,
        gpu_sampler.GpuSampler(lambda: nvidia_smi.sample_gpu(context.machine)) as sampler,
    ):
        measurement = throughput.measure_decode_rate(
            target,
            bounds=bounds,
            baseline=baseline,
            tokens=args.tokens,
            progress=lambda done, total: context.progress(done, total, unit="tokens", text="measuring"),
            on_decoding=sampler.discard_samples,
        )
        gpu = sampler.state
    counters_after = read_settled_counters(
        read_counters, lambda counters: _describe_token_mismatch(counters_before, counters, measurement)
    )
    tokens_of_others = running_server.read_tokens_since(context, args.base_url, tokens_before)
    return measurement, Observations(counters_before, counters_after, gpu, lag_sampler, tokens_of_others)


def _baseline_conditions(args: SmokeTest.Args, observations: Observations, context: Context) -> dict[str, Any]:
    """Return the conditions to record with a baseline: the kernel path, and the GPU's power and utilization."""
    state = evidence.read_engine_state(context, args.container)
    log_format = container_labels.engine_at(context, args.base_url).log
    gpu_state = {"power_w": observations.gpu.power_w, "utilization_percent": observations.gpu.utilization_percent}
    return {"kernels": resolution.kernel_path(state, log_format) if state else {}, "gpu": gpu_state}


def _describe_hidden_answer(target: Target, args: SmokeTest.Args) -> str:
    """Describe an answer that has content only without `stream`; empty if it has none either way."""
    stream_body = openai_api.build_stream_request(target.http, target.model, throughput.build_prompt(), args.tokens)
    body = {name: value for name, value in stream_body.items() if name not in ("stream", *target.http.measurement_keys)}
    answer = http_probe.send_with_fewer_options(target, body)
    content, _ = openai_api.parse_answer(answer.json())
    if not content:
        return ""
    quoted_text = one_line(content, max_chars=MAX_QUOTED_CHARS)
    return f"streaming clients see no answer: without `stream` the content is {quoted_text!r}, with it all text is `reasoning`."


def _probe_speculation(target: Target, context: Context, data: dict[str, Any]) -> Result | None:
    """Return the failure if speculation breaks the answers to many streams or at a temperature; None if it works."""
    cells = speculation_proof.query_cells(
        target,
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


def _describe_token_mismatch(
    counters_before: Mapping[str, float], counters_after: Mapping[str, float], measurement: SmokeResult
) -> str:
    """Describe a difference between the server's and the client's token counts; empty if they agree or the server has none."""
    served_tokens = counter_increase(counters_before, counters_after, engine_http.GENERATED)
    if (
        served_tokens is None
        or measurement.approximate
        or not has_count_mismatch(served_tokens, measurement.tokens, measurement.capped)
    ):
        return ""
    return f"the server counted {served_tokens:.0f} tokens, the client {measurement.tokens}"


def _find_doubt(
    measurement: SmokeResult, observations: Observations, baseline: Baseline | None
) -> tuple[str, str, str] | None:
    """Return why the measurement proves nothing, as verdict, message and fix; None if it is valid."""
    if mismatch := _describe_token_mismatch(observations.counters_before, observations.counters_after, measurement):
        return "inconclusive", f"other traffic: {mismatch}", server_counters.IDLE_FIX
    if observations.lag.spoils_rates(measurement.decoding_s):
        lag_description = f"this client is too slow: it wakes up {observations.lag.p99_s * 1000:.0f} ms late (p99)"
        return "inconclusive", lag_description, "Check what else uses the host's CPUs (`top`)."
    if measurement.verdict not in (*FAILED_VERDICTS, "new baseline"):
        return None
    if sum(observations.tokens_of_others.values()) > MAX_OTHER_TOKENS_SHARE * measurement.tokens:
        other_activity = ", ".join(
            f"{name} generated {tokens:.0f} tokens" for name, tokens in observations.tokens_of_others.items()
        )
        return "inconclusive", f"the GPU was shared: {other_activity} during the measurement", server_counters.IDLE_FIX
    if observations.gpu.is_degraded(baseline.clock_mhz if baseline else None):
        message = f"host degraded: {observations.gpu.sentence}; {measurement.tok_per_s:.1f} tok/s does not describe the server"
        return "host degraded", message, "Cut the host's AC power for 60 s (USB-PD); a restart does not fix it."
    return None


def _find_failure(
    target: Target,
    measurement: SmokeResult,
    observations: Observations,
    baseline: Baseline | None,
    args: SmokeTest.Args,
    context: Context,
    data: dict[str, Any],
) -> Result | None:
    """Return the failure of a measurement that is bad or proves nothing; None if it is valid.

    Args:
        data: the measured figures.
    """
    if measurement.only_thinking and (problem := _describe_hidden_answer(target, args)):
        causes = container_labels.engine_at(context, args.base_url).probe_flags.causes
        cause = causes.get("thinking in content", "")
        fix = f"Likely cause: {cause}." if cause else ""
        return Result(failed=True, msg=problem, fix=fix, data={**data, "verdict": "misconfigured"})
    doubt = _find_doubt(measurement, observations, baseline)
    if doubt is not None:
        data["verdict"], message, fix = doubt
        return Result(failed=True, exit=Exit.INCONCLUSIVE, msg=f"{message}.", fix=fix, data=data)
    if measurement.verdict in FAILED_VERDICTS:
        return _failed_result(measurement, observations, baseline, args, context, data)
    return None


def _failed_result(
    measurement: SmokeResult,
    observations: Observations,
    baseline: Baseline | None,
    args: SmokeTest.Args,
    context: Context,
    data: dict[str, Any],
) -> Result:
    """Return the failure with its likely causes.

    Args:
        data: the measured figures.
    """
    expected_rate = data["expected_tok_per_s"] or (baseline.median if baseline else 0) or measurement.tok_per_s or 1
    causes: list[slowness.Cause] = []
    if measurement.verdict != "invalid":
        state = evidence.read_engine_state(context, args.container)
        rate = statistics.median(measurement.burst_rates) if measurement.in_bursts else measurement.tok_per_s
        is_degraded = observations.gpu.is_degraded(baseline.clock_mhz if baseline else None)
        causes = slowness.list_likely_causes(
            slowness.SlownessEvidence(
                share=rate / expected_rate,
                gpu_state=observations.gpu.sentence,
                gpu_degraded=is_degraded if observations.gpu.has_clock else None,
                log=state.to_json() if state else None,
                ollama_models=evidence.list_ollama_models(context),
                meminfo=evidence.read_meminfo(context),
                # 0 because the token counts agree: no other requests were running
                active_requests=0.0 if observations.counters_before else None,
                accepted_per_draft=data["acceptance"],
                model=str(args.baseline_key.get("model_id", "")),
            )
        )
    run_rates = ", ".join(f"{run.tok_per_s:.1f}" for run in measurement.runs)
    lines = [f"runs: {run_rates} tok/s"] if run_rates else []
    lines += [
        f"{cause.verdict}: {cause.name}: {cause.evidence}" + (f" -> {cause.fix}" if cause.fix else "")
        for cause in causes
    ]
    data = {**data, "evidence": lines, "causes": [cause.to_json() for cause in causes]}
    fix = "" if measurement.verdict == "invalid" else "Run `invoke diagnose`."
    return Result(failed=True, msg=f"{measurement.verdict}: {measurement.reason}.", fix=fix, data=data)


def _result_data(
    measurement: SmokeResult,
    observations: Observations,
    bounds: Bounds,
    baseline: Baseline | None,
    acceptance: speculation_proof.Acceptance | None,
) -> dict[str, Any]:
    counters_before, counters_after = observations.counters_before, observations.counters_after
    hits, queries = (
        counter_increase(counters_before, counters_after, role)
        for role in (engine_http.PREFIX_HITS, engine_http.PREFIX_QUERIES)
    )
    gaps_s = sorted(gap for run in measurement.runs for gap in run.gaps_s)
    has_p99 = bool(gaps_s) and not observations.lag.spoils_percentiles(measurement.gap_s)
    return {
        "tok_per_s": round(measurement.tok_per_s, 1) if measurement.runs else None,
        "request_tok_per_s": round(statistics.median(measurement.burst_rates), 1) if measurement.in_bursts else None,
        "ttft_s": round(measurement.ttft_s, 3) if measurement.ttft_s is not None else None,
        "runs": [round(run.tok_per_s, 1) for run in measurement.runs],
        "verdict": measurement.verdict,
        "baseline": round(baseline.median, 1) if baseline else None,
        "tolerance": round(baseline.tolerance, 3) if baseline else None,
        "expected_tok_per_s": bounds.expected,
        "ceiling_tok_per_s": round(bounds.ceiling, 1) if bounds.ceiling else None,
        "acceptance": acceptance.per_draft if acceptance else None,
        "acceptance_by_position": list(acceptance.positions) if acceptance else [],
        "drafts": acceptance.drafts if acceptance else None,
        "prefix_hit_share": round(hits / queries, 3) if queries and hits is not None else None,
        "gpu": observations.gpu.to_json(),
        "client_lag_ms": round(observations.lag.p99_s * 1000, 2),
        "itl_p99_ms": round(percentile(gaps_s, 99) * 1000, 2) if has_p99 else None,
        "approximate": measurement.approximate,
    }


def _describe_measurement(measurement: SmokeResult) -> str:
    if measurement.in_bursts:
        return f"no decode rate: {measurement.reason}; no baseline"
    ttft = f", TTFT {measurement.ttft_s * 1000:.0f} ms" if measurement.ttft_s is not None else ""
    count_note = " (counted in chunks: approximate)" if measurement.approximate else ""
    note = f"; {measurement.note}" if measurement.note else ""
    return f"{measurement.tok_per_s:.1f} tok/s (median of {len(measurement.runs)}){count_note}{ttft}; {measurement.reason}{note}"
