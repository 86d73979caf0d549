from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.engines import tasks
from sparkwright.engines.http import Http
from sparkwright.errors import Exit, Inconclusive
from sparkwright.host.containers import engine_of, server_key
from sparkwright.host.module import Context, Module
from sparkwright.host.records.baselines import Baselines, key_of
from sparkwright.host.runs import measurement_lock
from sparkwright.measure import server_metrics, stream
from sparkwright.measure.asker import Asker
from sparkwright.modules.proof import verdict as verdicts
from sparkwright.modules.proof.load_proof import learned
from sparkwright.modules.proof.smoke_test import IDLE_S
from sparkwright.protocol.result import Result, arg

ANSWER_TOKENS = 64
#: key of the rates in a baseline
NAME = "depth"
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
    """The decode rate of one stream at depth is what this host gave before: an attention kernel that falls back shows only there.

    After the throughput test one fresh prompt of each depth is sent, the shortest first, and 64 tokens are generated. All of it
    takes most_seconds at the most: a depth that does not fit into them is left out. The first rates of a key are kept with its
    throughput baseline; later ones below three quarters of them are a regression. A first rate below half of that behind a short
    prompt is reported as doubtful.

    Returns: rates (depth, tok_per_s, ttft_s), tok_per_s (at the greatest depth), baseline (of the same), verdict.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, as http://127.0.0.1:8000")
        model: str = arg("the served name")
        depths: list[int] = arg("tokens of each prompt; empty: nothing is measured", default_factory=list)
        baseline_key: dict[str, Any] = arg("see `smoke_test`; empty: nothing is compared", default_factory=dict)
        most_seconds: float = arg("how long all of them may take, seconds", default=180.0)
        api_key_secret: str = server_key.secret_arg()

    def run(self, args: Args, context: Context) -> Result:
        http = engine_of.at(context, args.base_url).http
        if not args.depths or tasks.aside(http):
            return Result(msg="no depth to measure", data={"verdict": verdicts.ASIDE, "rates": []})
        try:
            with measurement_lock.alone(context.state, context.run_id, "a test at depth", note=context.note):
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
        server_metrics.idle(lambda: server_metrics.read(http, args.base_url, key)[0], IDLE_S)
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
            request = asker.sized(max(1, depth - ANSWER_TOKENS), ANSWER_TOKENS)
            found = asker.run(request, cap_s=left_s, timeout_s=left_s)
            rate, first_s = found.tok_per_s, found.points[0][0] if found.points else None
            yield Rate(depth, round(rate, 2) if rate else None, round(first_s, 3) if first_s else None)


def _judged(rates: Sequence[Rate], args: DepthRates.Args, context: Context, http: Http) -> Result:
    """Compare the rates with those of the throughput baseline, and record those that it lacks."""
    kept, name = Baselines(context.state), key_of(args.baseline_key, context.machine, http)
    short = kept.read(name) if args.baseline_key else None
    before = numbers(kept.about(name).get(NAME)) if short else {}
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
        kept.add(name, {NAME: {**before, **fresh}})
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
