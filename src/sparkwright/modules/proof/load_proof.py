"""Proofs of the load that a recipe promises: long prompts at once, and rates at depth."""

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
from sparkwright.measure.server_client import ServerClient, TokenEstimator, random_text
from sparkwright.measure.workload import LadderStep, build_ladder
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.modules.proof.smoke_test import IDLE_S
from sparkwright.modules.proof.verdict import NOT_REQUESTED
from sparkwright.protocol.result import Result, arg
from sparkwright.units import MINUTE_FORMAT, format_time

#: where the host keeps what was proved, by the key of the baseline
PROOFS_FOLDER = "load_proofs"
ANSWER_TOKENS = 32
#: words are random: their tokens are known within this share
TOKEN_COUNT_MARGIN = 0.03
#: the words of two prompts that tell the tokens of a word. The random text at the head of each is worth some tokens more or
#: less: over 224 words that was 2 % of a word, and one prompt of the whole context in twenty or so was longer than the context
FEW_WORDS, MANY_WORDS = 32, 2048


class LoadProof(Module["LoadProof.Args"]):
    """Check that the server serves the context that its recipe promises in `expect.load`, with as many streams at once.

    Fresh prompts of an eighth, a quarter, half and all of the context are sent one after the other, then all streams
    together. Between them the guard of the start is checked: if it stopped the server, the start fails. A successful test is
    recorded under the key of the throughput baseline, and not repeated for the same server on the same host.

    Returns: rungs (context, streams, tok_per_s, ttft_s, lowest_bytes: the lowest MemAvailable during it), kept (whether it
    was proved before). Fails if a stream was refused or broke off.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        load: dict[str, Any] = arg(
            "context (tokens of a prompt) and streams; empty: nothing is tested", default_factory=dict
        )
        baseline_key: dict[str, Any] = arg(
            "identifies comparable measurements; empty: always test", default_factory=dict
        )
        timeout_s: float = arg("the longest silence of a stream, seconds", default=900.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        if not args.load:
            return Result(msg="no load promised", data={"verdict": NOT_REQUESTED, "rungs": []})
        http = container_labels.engine_at(context, args.base_url).http
        proof_name = record_name(
            PROOFS_FOLDER, {**build_key(args.baseline_key, context.machine, http), "load": args.load}
        )
        record = context.state.read(proof_name) if args.baseline_key else None
        if record and record.get("rungs"):
            when = format_time(record.get("since") or 0, MINUTE_FORMAT)
            msg = f"{record.get('sentence') or 'proved'}, proved {when}"
            return Result(msg=msg, data={"rungs": record["rungs"], "kept": True})
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        with lock.acquire_measurement(context.state, context.run_id, "a load proof", note=context.note):
            rungs = self._run_ladder(http, args, key, context)
        rows = [asdict(rung) for rung in rungs]
        sentence = f"survives {rungs[-1]}"
        if args.baseline_key:
            context.state.write(proof_name, {"rungs": rows, "since": time.time(), "sentence": sentence})
        return Result(msg=sentence, data={"rungs": rows, "kept": False})

    @staticmethod
    def _run_ladder(http: Http, args: Args, key: str, context: Context) -> list[LadderStep]:
        steps = build_ladder(int(args.load["context"]), int(args.load.get("streams") or 1))
        sender = calibrate(
            ServerClient(http, args.model, args.base_url, key), args.timeout_s, shortest_tokens=steps[0].context
        )
        rungs: list[LadderStep] = []
        for rung in steps:
            context.check_failures()
            context.progress(len(rungs), len(steps), text=f"{rung.context} tokens x {rung.streams}")
            rungs.append(_measure_rung(rung, sender, args, context))
            context.note(str(rungs[-1]), detail=True)
        return rungs


def calibrate(sender: ServerClient, timeout_s: float, *, shortest_tokens: int) -> ServerClient:
    """Learn how many tokens the server makes of a word.

    Args:
        sender: sends the prompts.
        timeout_s: the longest silence of a stream, seconds.
        shortest_tokens: the shortest prompt that will be asked for; none of these is longer than half of it.

    Raises:
        Failed: the server gives no token.
    """
    word_counts = (FEW_WORDS, max(FEW_WORDS * 2, min(MANY_WORDS, shortest_tokens // 2)))
    try:
        tokens = [
            sender.run(sender.request(random_text(count), 1), cap_s=timeout_s, timeout_s=timeout_s).prompt_tokens
            for count in word_counts
        ]
    except stream.StreamError as error:
        raise Failed(f"no token from {sender.base_url}: {error}.") from None
    sender.token_estimator = TokenEstimator.from_prompts((word_counts[0], tokens[0]), (word_counts[1], tokens[1]))
    return sender


def _measure_rung(rung: LadderStep, sender: ServerClient, args: LoadProof.Args, context: Context) -> LadderStep:
    """Send the prompts of one step and read the memory meanwhile."""
    tokens = max(1, int(rung.context * (1 - TOKEN_COUNT_MARGIN)) - ANSWER_TOKENS)
    requests = [sender.sized_request(tokens, ANSWER_TOKENS) for _ in range(rung.streams)]
    context.guards.reset_lowest()
    before = context.machine.meminfo()["MemAvailable"]
    options: dict[str, Any] = {"cap_s": args.timeout_s, "timeout_s": args.timeout_s, "api_key": sender.api_key}
    outcomes = load.send_all(args.base_url, requests, counter_keys=sender.http.counted, **options)
    lowest_bytes = context.guards.lowest_bytes
    after = context.machine.meminfo()["MemAvailable"]
    _refuse_failed(rung, outcomes, context)
    totals = figures.summarize([outcome.stream for outcome in outcomes if outcome.stream])
    return LadderStep(
        rung.context,
        rung.streams,
        round(totals.stream_tok_per_s, 2) if totals.stream_tok_per_s else None,
        round(totals.ttft.max, 3) if totals.ttft else None,
        min(before, after) if lowest_bytes is None else min(lowest_bytes, before, after),
    )


def _refuse_failed(rung: LadderStep, outcomes: Sequence[load.Outcome], context: Context) -> None:
    """Raise Failed for a step of which not every stream gave a token."""
    failed = [outcome for outcome in outcomes if outcome.stream is None or not outcome.stream.points]
    if failed:
        context.guards.check()  # what it was stopped for says more
        why = failed[0].error or "no token came"
        failed_streams = f"{len(failed)} of {rung.streams} streams" if rung.streams > 1 else "the stream"
        message = f"{failed_streams} of {rung.context} tokens failed: {why}."
        raise Failed(message, fix="Promise less in `expect.load`, or give the server more memory for its KV cache.")


DEPTH_RATES_ANSWER_TOKENS = 64
#: key of the rates in a baseline
DEPTH_RATES_KEY = "depth"
#: share of the earlier rate at the same depth below which it is a regression: one stream, measured once
MIN_RATE_SHARE = 0.75
#: share of a short prompt's rate below which a first measurement is doubtful. By the bytes that are read, a dense 8B in bf16
#: loses a fifth of its rate behind 32k tokens (16 GB of weights, 4 GB of KV cache); an attention backend that falls back, most
MIN_FIRST_RATE_SHARE = 0.5
SLOWER_FIX = (
    "Compare the attention backend in the engine's log (`invoke logs --state`) with the one before; set "
    "`attention-backend`."
)


@dataclass(frozen=True, slots=True)
class Rate:
    """The decode rate of one stream after a prompt of a given depth."""

    depth: int
    tok_per_s: float | None  #: None where the tokens came in bursts, or not in time
    ttft_s: float | None = None


class DepthRates(Module["DepthRates.Args"]):
    """Compare the decode rate of one stream at depth with this host's earlier rates, to detect a slow attention kernel.

    After the throughput test one fresh prompt of each depth is sent, the shortest first, and 64 tokens are generated. In
    total this takes at most most_seconds: depths that do not fit into that time are skipped. The first rates of a key are
    kept with its throughput baseline; later rates below three quarters of them are a regression. A first rate below half of
    the rate after a short prompt is reported as doubtful.

    Returns: rates (depth, tok_per_s, ttft_s), tok_per_s (at the greatest depth), baseline (of the same), verdict.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, such as http://127.0.0.1:8000")
        model: str = arg("the served name")
        depths: list[int] = arg("prompt lengths in tokens; empty: nothing is measured", default_factory=list)
        baseline_key: dict[str, Any] = arg("see `smoke_test`; empty: nothing is compared", default_factory=dict)
        most_seconds: float = arg("time limit for all of them together, seconds", default=180.0)
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
            return Result(
                failed=True, msg=f"a prompt at depth failed: {error}.", data={"verdict": "broken", "rates": []}
            )
        return _compare_rates(rates, args, context, http)

    @staticmethod
    def _measure_rates(http: Http, args: DepthRates.Args, context: Context) -> Iterator[Rate]:
        key = server_key.find_probe_key(context, args.base_url, args.api_key_secret)
        server_counters.wait_until_idle(lambda: server_counters.read_counters(http, args.base_url, key)[0], IDLE_S)
        until_s = time.monotonic() + args.most_seconds
        sender = calibrate(
            ServerClient(http, args.model, args.base_url, key), args.most_seconds, shortest_tokens=min(args.depths)
        )
        for n, depth in enumerate(sorted(args.depths)):
            context.progress(n, len(args.depths), text=f"decoding behind {depth} tokens")
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                yield Rate(depth, None)
                continue
            request = sender.sized_request(max(1, depth - DEPTH_RATES_ANSWER_TOKENS), DEPTH_RATES_ANSWER_TOKENS)
            recording = sender.run(request, cap_s=left_s, timeout_s=left_s)
            rate, ttft_s = recording.tok_per_s, recording.points[0][0] if recording.points else None
            yield Rate(depth, round(rate, 2) if rate else None, round(ttft_s, 3) if ttft_s else None)


def _compare_rates(rates: Sequence[Rate], args: DepthRates.Args, context: Context, http: Http) -> Result:
    """Compare the rates with those of the throughput baseline, and record those that it lacks."""
    baselines, key = Baselines(context.state), build_key(args.baseline_key, context.machine, http)
    short = baselines.read(key) if args.baseline_key else None
    earlier_rates = parse_rates(baselines.read_about(key).get(DEPTH_RATES_KEY)) if short else {}
    new_rates = {
        str(rate.depth): rate.tok_per_s for rate in rates if rate.tok_per_s and str(rate.depth) not in earlier_rates
    }
    deepest = next((rate for rate in reversed(rates) if rate.tok_per_s), None)
    baseline = earlier_rates.get(str(deepest.depth)) if deepest else None
    data = {
        "rates": [asdict(rate) for rate in rates],
        "tok_per_s": deepest.tok_per_s if deepest else None,
        "baseline": baseline,
    }
    if why := describe_rate_drops(rates, earlier_rates):
        return Result(
            failed=True, msg=f"slower at depth: {why}.", fix=SLOWER_FIX, data={**data, "verdict": "regression"}
        )
    if short and new_rates:
        baselines.add_about(key, {DEPTH_RATES_KEY: {**earlier_rates, **new_rates}})
    verdict = "not compared" if deepest is None or not short else "proved"
    return Result(msg=format_rates(rates, short.median if short else None), data={**data, "verdict": verdict})


def parse_rates(rates: object) -> dict[str, float]:
    """Return the valid rates of a baseline, by depth."""
    rows = rates.items() if isinstance(rates, Mapping) else ()
    return {
        str(depth): float(rate)
        for depth, rate in rows
        if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0
    }


def describe_rate_drops(rates: Sequence[Rate], earlier_rates: Mapping[str, float]) -> str:
    """Return which rates fell below those of the same depth before; "" where none did."""
    rows = [(rate, earlier_rates.get(str(rate.depth))) for rate in rates]
    return ", ".join(
        f"{rate.tok_per_s:.1f} tok/s behind {rate.depth} tokens against {base:.1f} before"
        for rate, base in rows
        if rate.tok_per_s and base and rate.tok_per_s < MIN_RATE_SHARE * base
    )


def format_rates(rates: Sequence[Rate], short_prompt_rate: float | None) -> str:
    """Return the rates as a person reads them. short_prompt_rate: None if unknown."""
    rows = []
    for rate in rates:
        share = (
            f" ({rate.tok_per_s / short_prompt_rate:.0%} of a short prompt's)"
            if rate.tok_per_s and short_prompt_rate
            else ""
        )
        rows.append(f"{rate.tok_per_s:.1f} tok/s{share}" if rate.tok_per_s else "not measured in time")
        rows[-1] = f"behind {rate.depth} tokens {rows[-1]}"
    doubtful = any(
        rate.tok_per_s and short_prompt_rate and rate.tok_per_s < MIN_FIRST_RATE_SHARE * short_prompt_rate
        for rate in rates
    )
    text = "; ".join(rows)
    return f"{text}; less than half: does an attention backend fall back? (`invoke logs --state`)" if doubtful else text
