"""The `smoke_test` module."""

from __future__ import annotations

import hashlib
import json
import statistics
from dataclasses import dataclass
from typing import Any

from sparkwright.engine import endpoints
from sparkwright.errors import Inconclusive
from sparkwright.measure import smoke, stream
from sparkwright.modules import http_probe
from sparkwright.modules.base import Context, Module, Result, arg

MISMATCH = 0.01

#: likely causes of a slow server, worst first: (below this share of what is expected, cause)
LADDER: tuple[tuple[float, str], ...] = (
    (0.2, "a power fault: USB-PD leaves the GPU at 500-850 MHz (look at clocks.sm and power.draw; cut AC for 60 s)"),
    (0.2, "kernels still compiling: the log then warns of JIT compilation during inference"),
    (0.2, "another model in the shared memory, or a stale compile cache"),
    (0.35, "an image without kernels for sm_121 (needs CUDA 13)"),
    (0.7, "eager mode, BF16 weights where FP8 was meant, or capped clocks"),
)


class SmokeTest(Module["SmokeTest.Args"]):
    """The decode rate of one stream is what the recipe expects, and what this host gave before.

    A discarded warm-up, then the median of three runs (seven when unclear). Below half of tok_per_s is a misconfiguration.
    The first measurement of an image, model and arguments on a host becomes its baseline; later ones are judged against it.
    Other traffic, or counters of the server that do not agree with the client within 1 %, make it inconclusive (exit 4).

    Returns: tok_per_s (median), ttft_s, runs, verdict, baseline.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, as http://127.0.0.1:8000")
        model: str = arg("the served name")
        tok_per_s: float | None = arg("what the recipe expects of one stream; null: nothing", default=None)
        baseline_key: dict[str, Any] = arg(
            "what makes measurements comparable: image, model, command", default_factory=dict
        )
        tokens: int = arg("tokens a run", default=128)
        api_key_secret: str = arg("the secret that holds the server's API key", default="VLLM_API_KEY")

    def run(self, args: Args, context: Context) -> Result:
        secret = context.secrets.get(args.api_key_secret)
        key = secret.reveal() if secret else ""
        name = f"baseline-{_digest(args.baseline_key)}"
        known = context.state.read(name)
        baseline = smoke.Baseline(known["median"], known["mad"]) if known else None
        before = self._counters(args, key)
        if before.get(endpoints.RUNNING, 0) + before.get(endpoints.WAITING, 0) > 0:
            raise Inconclusive(
                "other requests are running: a measurement beside them proves nothing.", fix="Try again when idle."
            )
        try:
            found = smoke.measure(
                args.base_url,
                args.model,
                expected=args.tok_per_s,
                baseline=baseline,
                tokens=args.tokens,
                api_key=key,
                progress=lambda done, total: context.progress(done, total, unit="tokens", text="measuring"),
            )
        except stream.StreamError as error:
            return Result(failed=True, msg=f"the measurement broke off: {error}.", data={"verdict": "broken"})
        self._same_count(found, before, self._counters(args, key))
        if found.verdict == "new baseline":
            measured = smoke.Baseline.of(found.rates)
            context.state.write(name, {"median": measured.median, "mad": measured.mad, "key": args.baseline_key})
        return _judged(found, baseline, args)

    @staticmethod
    def _counters(args: Args, key: str) -> dict[str, float]:
        answer = http_probe.ask(args.base_url, endpoints.METRICS, api_key=key)
        return endpoints.counters(answer.body.decode(errors="replace")) if answer.status == 200 else {}

    @staticmethod
    def _same_count(found: smoke.Measured, before: dict[str, float], after: dict[str, float]) -> None:
        """The server's own counter has to agree, else somebody else was served meanwhile."""
        name = endpoints.GENERATED_TOKENS
        if name not in before or name not in after or found.approximate:
            return
        served = after[name] - before[name]
        cut_short = 8
        if served - found.tokens > max(MISMATCH * served, cut_short):
            said = f"the server generated {served:.0f} tokens, {found.tokens} of them for the measurement"
            raise Inconclusive(f"{said}: other traffic.", fix="Try again when idle.")


def _judged(found: smoke.Measured, baseline: smoke.Baseline | None, args: SmokeTest.Args) -> Result:
    ttft_s = statistics.median(found.ttfts_s) if found.ttfts_s else None
    data: dict[str, Any] = {
        "tok_per_s": round(found.tok_per_s, 1),
        "ttft_s": round(ttft_s, 3) if ttft_s is not None else None,
        "runs": [round(rate, 1) for rate in found.rates],
        "verdict": found.verdict,
        "baseline": round(baseline.median, 1) if baseline else None,
        "approximate": found.approximate,
    }
    if found.verdict in ("misconfigured", "regression"):
        share = found.tok_per_s / (args.tok_per_s or (baseline.median if baseline else 0) or 1)
        causes = [f"likely: {cause}" for limit, cause in LADDER if share < limit]
        runs = ", ".join(f"{rate:.1f}" for rate in found.rates)
        data["evidence"] = [f"runs: {runs} tok/s", *causes]
        return Result(failed=True, msg=f"{found.verdict}: {found.reason}.", data=data)
    first = f", first token after {ttft_s * 1000:.0f} ms" if ttft_s is not None else ""
    said = f"{found.tok_per_s:.1f} tok/s (median of {len(found.rates)}){first}; {found.reason}"
    return Result(msg=said, data=data)


def _digest(key: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
