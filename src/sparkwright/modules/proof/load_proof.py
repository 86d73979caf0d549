"""Modules that test the load that a recipe promises: concurrent long prompts, and decode rates at depth."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.engines import tasks
from sparkwright.engines.http import Http
from sparkwright.errors import Exit, Failed, Inconclusive
from sparkwright.host.containers import container_labels, server_key
from sparkwright.host.module import Context, Module
from sparkwright.host.records.baselines import Baselines, build_key, record_name
from sparkwright.host.runs import lock
from sparkwright.measure import figures, load, server_counters, stream
from sparkwright.measure.http_probe import Target
from sparkwright.measure.server_client import ServerClient, TokenEstimator, random_text
from sparkwright.measure.workload import LoadStep, build_load_steps
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.modules.proof.smoke_test import IDLE_TIMEOUT_S
from sparkwright.modules.proof.verdict import NOT_REQUESTED
from sparkwright.protocol.result import Result, arg
from sparkwright.units import MINUTE_FORMAT, format_time

#: folder of the records of successful tests, below the state folder
PROOFS_FOLDER = "load_proofs"
ANSWER_TOKENS = 32
#: error of the estimated token count of random words, as a share
TOKEN_COUNT_MARGIN = 0.03
#: lengths of the two prompts that calibrate the tokens per word. The random text at the start of each prompt varies by a few
#: tokens: with 224 words the estimate was 2 % off, and about one prompt in twenty was longer than the context
SHORT_PROMPT_WORDS, LONG_PROMPT_WORDS = 32, 2048

DEPTH_RATES_ANSWER_TOKENS = 64
#: key of the rates in a baseline
DEPTH_RATES_KEY = "depth"
#: a rate below this share of the earlier one at the same depth is a regression; low, because one stream is measured once
MIN_DEPTH_RATE_SHARE = 0.75
#: a first rate below this share of a short prompt's rate is doubtful. By the bytes read, a dense 8B in bf16 loses a fifth
#: of its rate at a depth of 32k tokens (16 GB of weights, 4 GB of KV cache); a slow fallback of the attention backend loses
#: most of it
MIN_FIRST_RATE_SHARE = 0.5
SLOWER_FIX = (
    "Compare the attention backend in the engine's log (`invoke logs --state`) with the earlier one; set "
    "`attention-backend`."
)


class LoadProof(Module["LoadProof.Args"]):
    """Check that the server handles the context and the number of streams that its recipe promises in `expect.load`.

    Fresh prompts of an eighth, a quarter, half and all of the context are sent one after the other, then all streams
    together. The start fails if the memory guard stops the server during the test. A successful test is recorded under the
    key of the throughput baseline, and not repeated for the same server on the same host.

    Returns: rungs (the steps: context, streams, tok_per_s, ttft_s, lowest_bytes: the lowest MemAvailable), kept (an earlier
    test was successful). Fails if a stream is refused or interrupted.
    """

    valid_in_check_mode = False
    loads_server = True

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        load: dict[str, Any] = arg("context (tokens of a prompt) and streams; empty: no test", default_factory=dict)
        baseline_key: dict[str, Any] = arg(
            "identifies comparable measurements; empty: always test", default_factory=dict
        )
        timeout_s: float = arg("maximum time between two tokens of a stream, seconds", default=900.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        if not args.load:
            return Result(msg="the recipe promises no load", data={"verdict": NOT_REQUESTED, "rungs": []})
        http = container_labels.engine_at(context, args.base_url).http
        proof_name = record_name(
            PROOFS_FOLDER, {**build_key(args.baseline_key, context.machine, http), "load": args.load}
        )
        record = context.state.read(proof_name) if args.baseline_key else None
        if record and record.get("rungs"):
            tested_at = format_time(record.get("since") or 0, MINUTE_FORMAT)
            msg = f"{record.get('sentence') or 'proved'}, tested {tested_at}"
            return Result(msg=msg, data={"rungs": record["rungs"], "kept": True})
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        with lock.acquire_measurement(context.state, context.run_id, "a load test", note=context.note):
            measured_steps = self._run_steps(
                Target(http, args.base_url, args.model, key, args.timeout_s), args, context
            )
        rows = [asdict(step) for step in measured_steps]
        message = f"survives {measured_steps[-1]}"
        if args.baseline_key and not context.check:
            context.state.write(proof_name, {"rungs": rows, "since": time.time(), "sentence": message})
        return Result(msg=message, data={"rungs": rows, "kept": False})

    @staticmethod
    def _run_steps(target: Target, args: Args, context: Context) -> list[LoadStep]:
        steps = build_load_steps(int(args.load["context"]), int(args.load.get("streams") or 1))
        server = ServerClient(target)
        calibrate(server, args.timeout_s, shortest_tokens=steps[0].context)
        measured_steps: list[LoadStep] = []
        for step in steps:
            context.check_failures()
            context.progress(len(measured_steps), len(steps), text=f"{step.context} tokens x {step.streams}")
            measured_steps.append(_measure_step(step, server, args, context))
            context.note(str(measured_steps[-1]), detail=True)
        return measured_steps


def calibrate(server: ServerClient, timeout_s: float, *, shortest_tokens: int) -> None:
    """Set the server's token estimator from the token counts of two prompts.

    Args:
        timeout_s: maximum time between two tokens of a stream, seconds.
        shortest_tokens: length of the shortest prompt of the test; the two prompts have at most half that length.

    Raises:
        Failed: The server generates no token.
    """
    word_counts = (SHORT_PROMPT_WORDS, max(SHORT_PROMPT_WORDS * 2, min(LONG_PROMPT_WORDS, shortest_tokens // 2)))
    try:
        token_counts = [
            server.run(server.build_request(random_text(count), 1), cap_s=timeout_s, timeout_s=timeout_s).prompt_tokens
            for count in word_counts
        ]
    except stream.StreamError as error:
        raise Failed(f"no token from {server.target.base_url}: {error}.") from None
    server.token_estimator = TokenEstimator.from_prompts(
        (word_counts[0], token_counts[0]), (word_counts[1], token_counts[1])
    )


def _measure_step(step: LoadStep, server: ServerClient, args: LoadProof.Args, context: Context) -> LoadStep:
    """Send the prompts of one step. Raises Failed if a stream generates no token."""
    prompt_tokens = max(1, int(step.context * (1 - TOKEN_COUNT_MARGIN)) - ANSWER_TOKENS)
    requests = [server.build_sized_request(prompt_tokens, ANSWER_TOKENS) for _ in range(step.streams)]
    context.guards.reset_lowest()
    available_bytes_before = context.machine.meminfo()["MemAvailable"]
    outcomes = load.send_all(server.target, requests, cap_s=args.timeout_s)
    lowest_bytes = context.guards.lowest_bytes
    available_bytes_after = context.machine.meminfo()["MemAvailable"]
    failed_outcomes = [outcome for outcome in outcomes if outcome.stream is None or not outcome.stream.points]
    if failed_outcomes:
        context.guards.check()  # if the memory guard stopped the server, its error explains more
        reason = failed_outcomes[0].error or "no token arrived"
        failed_streams = f"{len(failed_outcomes)} of {step.streams} streams" if step.streams > 1 else "the stream"
        message = f"{failed_streams} of {step.context} tokens failed: {reason}."
        raise Failed(message, fix="Promise less in `expect.load`, or give the server more memory for its KV cache.")
    totals = figures.summarize([outcome.stream for outcome in outcomes if outcome.stream])
    return LoadStep(
        step.context,
        step.streams,
        round(totals.stream_tok_per_s, 2) if totals.stream_tok_per_s else None,
        round(totals.ttft.max, 3) if totals.ttft else None,
        min(size for size in (lowest_bytes, available_bytes_before, available_bytes_after) if size is not None),
    )


@dataclass(frozen=True, slots=True)
class Rate:
    """The decode rate of one stream after a prompt of a given depth."""

    depth: int
    #: None if the tokens arrived in bursts, or not in time
    tok_per_s: float | None
    ttft_s: float | None = None


class DepthRates(Module["DepthRates.Args"]):
    """Compare the decode rate of one stream at depth with this host's earlier rates, to detect a slow attention kernel.

    After the throughput test, one fresh prompt of each depth is sent, the shortest first, and 64 tokens are generated.
    Depths that do not fit into most_seconds are skipped. The first rates of a key are saved with its throughput baseline;
    later rates below three quarters of them are a regression. A rate below half of a short prompt's is reported as doubtful.

    Returns: rates (depth, tok_per_s, ttft_s), tok_per_s (at the greatest measured depth), baseline (at the same depth),
    verdict.
    """

    valid_in_check_mode = False
    loads_server = True

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server's URL, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        depths: list[int] = arg("prompt lengths in tokens; empty: no measurement", default_factory=list)
        baseline_key: dict[str, Any] = arg("see `smoke_test`; empty: no comparison", default_factory=dict)
        most_seconds: float = arg("time limit for all depths together, seconds", default=180.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        http = container_labels.engine_at(context, args.base_url).http
        if not args.depths or tasks.reason_not_generating(http):
            return Result(msg="no depth to measure", data={"verdict": verdicts.NOT_REQUESTED, "rates": []})
        try:
            with lock.acquire_measurement(context.state, context.run_id, "a test at depth", note=context.note):
                rates = list(self._measure_rates(http, args, context))
        except Inconclusive as error:
            data = {"verdict": "inconclusive", "rates": []}
            return Result(exit=Exit.INCONCLUSIVE, msg=error.message, fix=error.fix, data=data)
        except stream.StreamError as error:
            data = {"verdict": "broken", "rates": []}
            return Result(failed=True, msg=f"a prompt at depth failed: {error}.", data=data)
        return _compare_rates(rates, args, context, http)

    @staticmethod
    def _measure_rates(http: Http, args: DepthRates.Args, context: Context) -> Iterator[Rate]:
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        target = Target(http, args.base_url, args.model, key)
        server_counters.wait_until_idle(lambda: server_counters.read_counters(target)[0], IDLE_TIMEOUT_S)
        deadline_s = time.monotonic() + args.most_seconds
        server = ServerClient(target)
        calibrate(server, args.most_seconds, shortest_tokens=min(args.depths))
        for index, depth in enumerate(sorted(args.depths)):
            context.progress(index, len(args.depths), text=f"decoding at depth {depth}")
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                yield Rate(depth, None)
                continue
            request = server.build_sized_request(max(1, depth - DEPTH_RATES_ANSWER_TOKENS), DEPTH_RATES_ANSWER_TOKENS)
            recording = server.run(request, cap_s=remaining_s, timeout_s=remaining_s)
            rate, ttft_s = recording.tok_per_s, recording.points[0][0] if recording.points else None
            yield Rate(depth, round(rate, 2) if rate else None, round(ttft_s, 3) if ttft_s else None)


def _compare_rates(rates: Sequence[Rate], args: DepthRates.Args, context: Context, http: Http) -> Result:
    """Compare the rates with those saved with the throughput baseline, and save rates of new depths there."""
    baselines, key = Baselines(context.state), build_key(args.baseline_key, context.machine, http)
    throughput = baselines.read(key) if args.baseline_key else None
    earlier_rates = parse_rates(baselines.read_conditions(key).get(DEPTH_RATES_KEY)) if throughput else {}
    new_rates = {
        str(rate.depth): rate.tok_per_s for rate in rates if rate.tok_per_s and str(rate.depth) not in earlier_rates
    }
    deepest_rate = next((rate for rate in reversed(rates) if rate.tok_per_s), None)
    baseline = earlier_rates.get(str(deepest_rate.depth)) if deepest_rate else None
    data: dict[str, Any] = {
        "rates": [asdict(rate) for rate in rates],
        "tok_per_s": deepest_rate.tok_per_s if deepest_rate else None,
        "baseline": baseline,
    }
    if rate_drops := describe_rate_drops(rates, earlier_rates):
        data["verdict"] = "regression"
        return Result(failed=True, msg=f"slower at depth: {rate_drops}.", fix=SLOWER_FIX, data=data)
    if throughput and new_rates and not context.check:
        baselines.add_conditions(key, {DEPTH_RATES_KEY: {**earlier_rates, **new_rates}})
    data["verdict"] = "not compared" if deepest_rate is None or not throughput else "proved"
    return Result(msg=format_rates(rates, throughput.median if throughput else None), data=data)


def parse_rates(rates: object) -> dict[str, float]:
    """Return the valid rates in a baseline's record, by depth."""
    depth_rates = rates.items() if isinstance(rates, Mapping) else ()
    return {
        str(depth): float(rate)
        for depth, rate in depth_rates
        if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0
    }


def describe_rate_drops(rates: Sequence[Rate], earlier_rates: Mapping[str, float]) -> str:
    """Describe the rates that fell below MIN_DEPTH_RATE_SHARE of the earlier rate at the same depth; empty if none did."""
    pairs = [(rate, earlier_rates.get(str(rate.depth))) for rate in rates]
    return ", ".join(
        f"{rate.tok_per_s:.1f} tok/s at depth {rate.depth}, {earlier_rate:.1f} before"
        for rate, earlier_rate in pairs
        if rate.tok_per_s and earlier_rate and rate.tok_per_s < MIN_DEPTH_RATE_SHARE * earlier_rate
    )


def format_rates(rates: Sequence[Rate], short_prompt_rate: float | None) -> str:
    """Return the rates as text.

    Args:
        short_prompt_rate: rate of the throughput test; None if unknown.
    """
    phrases, is_doubtful = [], False
    for rate in rates:
        if not rate.tok_per_s:
            phrases.append(f"at depth {rate.depth}: not measured in time")
            continue
        share_note = ""
        if short_prompt_rate:
            share_note = f" ({rate.tok_per_s / short_prompt_rate:.0%} of a short prompt's)"
            is_doubtful |= rate.tok_per_s < MIN_FIRST_RATE_SHARE * short_prompt_rate
        phrases.append(f"at depth {rate.depth}: {rate.tok_per_s:.1f} tok/s{share_note}")
    if is_doubtful:
        phrases.append("less than half: check the attention backend (`invoke logs --state`)")
    return "; ".join(phrases)
