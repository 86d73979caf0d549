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
from sparkwright.host.records.baselines import Baselines, key_of, name_of
from sparkwright.host.runs import lock
from sparkwright.measure import figures, http_probe, load, stream
from sparkwright.measure.asker import Asker, Ruler, words_text
from sparkwright.measure.workload import Rung, ladder
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.modules.proof.smoke_test import IDLE_S
from sparkwright.modules.proof.verdict import ASIDE
from sparkwright.protocol.result import Result, arg
from sparkwright.units import MINUTE, moment

#: where the host keeps what was proved, by the key of the baseline
FOLDER = "load_proofs"
ANSWER_TOKENS = 32
#: words are random: their tokens are known within this share
SLACK = 0.03
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
            return Result(msg="no load promised", data={"verdict": ASIDE, "rungs": []})
        http = container_labels.engine_at(context, args.base_url).http
        place = name_of(FOLDER, {**key_of(args.baseline_key, context.machine, http), "load": args.load})
        kept = context.state.read(place) if args.baseline_key else None
        if kept and kept.get("rungs"):
            when = moment(kept.get("since") or 0, MINUTE)
            msg = f"{kept.get('sentence') or 'proved'}, proved {when}"
            return Result(msg=msg, data={"rungs": kept["rungs"], "kept": True})
        key = server_key.for_probe(context, args.base_url, args.api_key_secret)
        with lock.alone(context.state, context.run_id, "a load proof", note=context.note):
            found = self._climbed(http, args, key, context)
        rows = [asdict(rung) for rung in found]
        sentence = f"survives {found[-1]}"
        if args.baseline_key:
            context.state.write(place, {"rungs": rows, "since": time.time(), "sentence": sentence})
        return Result(msg=sentence, data={"rungs": rows, "kept": False})

    @staticmethod
    def _climbed(http: Http, args: Args, key: str, context: Context) -> list[Rung]:
        steps = ladder(int(args.load["context"]), int(args.load.get("streams") or 1))
        asker = learned(Asker(http, args.model, args.base_url, key), args.timeout_s, shortest_tokens=steps[0].context)
        found: list[Rung] = []
        for rung in steps:
            context.go_on()
            context.progress(len(found), len(steps), text=f"{rung.context} tokens x {rung.streams}")
            found.append(_measured(rung, asker, args, context))
            context.note(str(found[-1]), detail=True)
        return found


def learned(asker: Asker, timeout_s: float, *, shortest_tokens: int) -> Asker:
    """Learn how many tokens the server makes of a word.

    Args:
        asker: sends the prompts.
        timeout_s: the longest silence of a stream, seconds.
        shortest_tokens: the shortest prompt that will be asked for; none of these is longer than half of it.

    Raises:
        Failed: the server gives no token.
    """
    words = (FEW_WORDS, max(FEW_WORDS * 2, min(MANY_WORDS, shortest_tokens // 2)))
    try:
        tokens = [
            asker.run(asker.request(words_text(count), 1), cap_s=timeout_s, timeout_s=timeout_s).prompt_tokens
            for count in words
        ]
    except stream.StreamError as error:
        raise Failed(f"no token from {asker.base_url}: {error}.") from None
    asker.ruler = Ruler.of((words[0], tokens[0]), (words[1], tokens[1]))
    return asker


def _measured(rung: Rung, asker: Asker, args: LoadProof.Args, context: Context) -> Rung:
    """Send the prompts of one step and read the memory meanwhile."""
    tokens = max(1, int(rung.context * (1 - SLACK)) - ANSWER_TOKENS)
    requests = [asker.sized(tokens, ANSWER_TOKENS) for _ in range(rung.streams)]
    context.guards.mark()
    before = context.machine.meminfo()["MemAvailable"]
    how: dict[str, Any] = {"cap_s": args.timeout_s, "timeout_s": args.timeout_s, "api_key": asker.api_key}
    outcomes = load.run(args.base_url, requests, counted=asker.http.counted, **how)
    seen = context.guards.lowest_bytes
    after = context.machine.meminfo()["MemAvailable"]
    _refuse_failed(rung, outcomes, context)
    found = figures.of([outcome.stream for outcome in outcomes if outcome.stream])
    return Rung(
        rung.context,
        rung.streams,
        round(found.stream_tok_per_s, 2) if found.stream_tok_per_s else None,
        round(found.ttft.max, 3) if found.ttft else None,
        min(before, after) if seen is None else min(seen, before, after),
    )


def _refuse_failed(rung: Rung, outcomes: Sequence[load.Outcome], context: Context) -> None:
    """Raise Failed for a step of which not every stream gave a token."""
    failed = [outcome for outcome in outcomes if outcome.stream is None or not outcome.stream.points]
    if failed:
        context.guards.check()  # what it was stopped for says more
        why = failed[0].error or "no token came"
        of = f"{len(failed)} of {rung.streams} streams" if rung.streams > 1 else "the stream"
        message = f"{of} of {rung.context} tokens failed: {why}."
        raise Failed(message, fix="Promise less in `expect.load`, or give the server more memory for its KV cache.")


DEPTH_RATES_ANSWER_TOKENS = 64
#: key of the rates in a baseline
DEPTH_RATES_NAME = "depth"
#: share of the earlier rate at the same depth below which it is a regression: one stream, measured once
FALLEN = 0.75
#: share of a short prompt's rate below which a first measurement is doubtful. By the bytes that are read, a dense 8B in bf16
#: loses a fifth of its rate behind 32k tokens (16 GB of weights, 4 GB of KV cache); an attention backend that falls back, most
SHALLOW = 0.5
FIX = "Compare the attention backend in the engine's log (`invoke logs --state`) with the one before; set `attention-backend`."


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
        if not args.depths or tasks.aside(http):
            return Result(msg="no depth to measure", data={"verdict": verdicts.ASIDE, "rates": []})
        try:
            with lock.alone(context.state, context.run_id, "a test at depth", note=context.note):
                rates = list(self._measured(http, args, context))
        except Inconclusive as error:
            data = {"verdict": "inconclusive", "rates": []}
            return Result(exit=Exit.INCONCLUSIVE, msg=error.message, fix=error.fix, data=data)
        except stream.StreamError as error:
            return Result(
                failed=True, msg=f"a prompt at depth failed: {error}.", data={"verdict": "broken", "rates": []}
            )
        return _judged(rates, args, context, http)

    @staticmethod
    def _measured(http: Http, args: DepthRates.Args, context: Context) -> Iterator[Rate]:
        key = server_key.for_probe(context, args.base_url, args.api_key_secret)
        http_probe.wait_until_idle(lambda: http_probe.read_counters(http, args.base_url, key)[0], IDLE_S)
        until_s = time.monotonic() + args.most_seconds
        asker = learned(
            Asker(http, args.model, args.base_url, key), args.most_seconds, shortest_tokens=min(args.depths)
        )
        for n, depth in enumerate(sorted(args.depths)):
            context.progress(n, len(args.depths), text=f"decoding behind {depth} tokens")
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                yield Rate(depth, None)
                continue
            request = asker.sized(max(1, depth - DEPTH_RATES_ANSWER_TOKENS), DEPTH_RATES_ANSWER_TOKENS)
            found = asker.run(request, cap_s=left_s, timeout_s=left_s)
            rate, first_s = found.tok_per_s, found.points[0][0] if found.points else None
            yield Rate(depth, round(rate, 2) if rate else None, round(first_s, 3) if first_s else None)


def _judged(rates: Sequence[Rate], args: DepthRates.Args, context: Context, http: Http) -> Result:
    """Compare the rates with those of the throughput baseline, and record those that it lacks."""
    kept, name = Baselines(context.state), key_of(args.baseline_key, context.machine, http)
    short = kept.read(name) if args.baseline_key else None
    before = numbers(kept.about(name).get(DEPTH_RATES_NAME)) if short else {}
    fresh = {str(rate.depth): rate.tok_per_s for rate in rates if rate.tok_per_s and str(rate.depth) not in before}
    deepest = next((rate for rate in reversed(rates) if rate.tok_per_s), None)
    base = before.get(str(deepest.depth)) if deepest else None
    data = {
        "rates": [asdict(rate) for rate in rates],
        "tok_per_s": deepest.tok_per_s if deepest else None,
        "baseline": base,
    }
    if why := fallen(rates, before):
        return Result(failed=True, msg=f"slower at depth: {why}.", fix=FIX, data={**data, "verdict": "regression"})
    if short and fresh:
        kept.add(name, {DEPTH_RATES_NAME: {**before, **fresh}})
    verdict = "not compared" if deepest is None or not short else "proved"
    return Result(msg=shown(rates, short.median if short else None), data={**data, "verdict": verdict})


def numbers(found: object) -> dict[str, float]:
    """Return the valid rates of a baseline, by depth."""
    rows = found.items() if isinstance(found, Mapping) else ()
    return {
        str(depth): float(rate)
        for depth, rate in rows
        if isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0
    }


def fallen(rates: Sequence[Rate], before: Mapping[str, float]) -> str:
    """Return which rates fell below those of the same depth before; "" where none did."""
    rows = [(rate, before.get(str(rate.depth))) for rate in rates]
    return ", ".join(
        f"{rate.tok_per_s:.1f} tok/s behind {rate.depth} tokens against {base:.1f} before"
        for rate, base in rows
        if rate.tok_per_s and base and rate.tok_per_s < FALLEN * base
    )


def shown(rates: Sequence[Rate], short: float | None) -> str:
    """Return the rates as a person reads them. short: behind a short prompt; None for not known."""
    rows = []
    for rate in rates:
        share = f" ({rate.tok_per_s / short:.0%} of a short prompt's)" if rate.tok_per_s and short else ""
        rows.append(f"{rate.tok_per_s:.1f} tok/s{share}" if rate.tok_per_s else "not measured in time")
        rows[-1] = f"behind {rate.depth} tokens {rows[-1]}"
    doubtful = any(rate.tok_per_s and short and rate.tok_per_s < SHALLOW * short for rate in rates)
    text = "; ".join(rows)
    return f"{text}; less than half: does an attention backend fall back? (`invoke logs --state`)" if doubtful else text
