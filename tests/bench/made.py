"""Small results of experiments."""

import random
from typing import Any

from sparkwright.bench.results_file import SCHEMA, Results

FIGURES: dict[str, Any] = {"streams": 3, "output_tokens": 300, "wall_s": 3.0, "output_tok_per_s": 100.0}
FIGURES |= {"stream_tok_per_s": 40.0, "largest_gap_ms": 60.0, "stalls": 0, "stall_ms": 0.0}
FIGURES |= {"ttft_p50_ms": 200.0, "ttft_mean_ms": 205.0, "itl_p50_ms": 21.0, "itl_p99_ms": 30.0}


def make_cell(
    arm: str,
    load: dict[str, Any],
    repetition: int = 1,
    *,
    group: str = "",
    derived: dict[str, Any] | None = None,
    series: list[dict[str, Any]] | None = None,
    **figures: Any,
) -> dict[str, Any]:
    figures = {**FIGURES, **figures}
    key = f"{arm}.{load['kind']}.{load.get('concurrency', 0)}.{repetition}"
    cell = {"key": key, "arm": arm, "repetition": repetition, "load": load, "verdict": "measured", "requests": 3}
    measured = {"figures": figures, "derived": derived or {}, "series": series or []}
    return {**cell, **measured, "groups": {group: figures} if group else {}}


def make_results(experiment: str, arms: list[dict[str, Any]], cells: list[dict[str, Any]], **fields: Any) -> Results:
    header = {"schema": SCHEMA, "name": f"{experiment}-x", "experiment": experiment, "host": "x", "tool": "sparkwright"}
    return Results.model_validate({**header, "arms": arms, "cells": cells, **fields})


def make_ab_results() -> Results:
    """Return results of two arms with two turns each, with data for every chart of an A/B experiment."""
    rng = random.Random(1)
    cells = []
    hol1 = {"kind": "hol1", "streams": 3, "output_tokens": 256, "long_tokens": 16384}
    hol2 = {"kind": "hol2", "shorts": 3, "prompt_tokens": 256, "long_tokens": 16384}
    for turn in (1, 2):
        for arm, factor in (("a", 1.0), ("b", 6.0)):
            times_s = [0.02 * n for n in range(1, 120)]
            gaps_ms = [rng.uniform(20, 23) * (factor * 8 if n == 60 else 1) for n in range(119)]
            series = [{"at_s": times_s, "gap_ms": gaps_ms, "long_at_s": [1.0]}]
            figures = {"largest_gap_ms": 500 * factor + turn, "stall_ms": 900 * factor, "stalls": 4}
            long = {"long_ttft_ms": 4100.0}
            cells.append(make_cell(arm, hol1, turn, group="decoding", series=series, derived=long, **figures))
            short = {"short_alone_ttft_mean_ms": 120.0, "short_ttft_mean_ms": 4000.0 / factor + turn}
            cells.append(make_cell(arm, hol2, turn, group="short", derived={**short, **long}))
            for streams in (1, 8):
                load = {"kind": "serve", "concurrency": streams, "requests": 16}
                cells.append(make_cell(arm, load, turn, output_tok_per_s=45.0 * streams**0.7 + turn))
    on, off = ({"effective": {"chunked_prefill": value}} for value in (True, False))
    arms: list[dict[str, Any]] = [
        {"name": "a", "title": "chunked prefill on", "max_num_batched_tokens": 4096, **on},
        {"name": "b", "title": "<b>chunked prefill</b> off", **off},
    ]
    return make_results("ab", arms, cells, sandbox=True)


def make_sweep_results() -> Results:
    """Return results of three sizes; the engine refuses the first one."""
    load = {"kind": "serve", "concurrency": 8, "requests": 32}
    cells = [make_cell(str(size), load, ttft_p50_ms=400000 / size, itl_p99_ms=size / 4) for size in (1024, 4096)]
    arms: list[dict[str, Any]] = [
        {"name": str(size), "title": f"max-num-batched-tokens {size}", "max_num_batched_tokens": size}
        for size in (512, 1024, 4096)
    ]
    arms[0]["refused"] = {"rule": "block-size", "sentence": "a block of 2096 tokens is larger than a step of 512."}
    return make_results("sweep", arms, cells)


def make_swept_results(*values: Any) -> Results:
    """Return results of a sweep of one flag over values, or of two flags over pairs; the last arm was not started."""
    names = ("speculative-config.num_speculative_tokens", "max-num-seqs")
    load, arms, cells = {"kind": "serve", "concurrency": 8, "requests": 32}, [], []
    for number, value in enumerate(values):
        swept = value if isinstance(value, tuple) else (value,)
        arms.append({"name": str(number), "title": f"arm {number}", "at": dict(zip(names, swept, strict=False))})
        if number < len(values) - 1:
            cells.append(make_cell(str(number), load, output_tok_per_s=100.0 + 10 * number))
    return make_results("sweep", arms, cells)
