"""Small results as experiments write them."""

import random
from typing import Any

from sparkwright.bench.results_file import SCHEMA, Results


def figures(**given: Any) -> dict[str, Any]:
    return {
        "streams": 3,
        "output_tokens": 300,
        "wall_s": 3.0,
        "output_tok_per_s": 100.0,
        "stream_tok_per_s": 40.0,
        "largest_gap_ms": 60.0,
        "stalls": 0,
        "stall_ms": 0.0,
        "ttft_p50_ms": 200.0,
        "ttft_mean_ms": 205.0,
        "itl_p50_ms": 21.0,
        "itl_p99_ms": 30.0,
        **given,
    }


def cell(arm: str, load: dict[str, Any], repetition: int = 1, *, group: str = "", **given: Any) -> dict[str, Any]:
    derived = given.pop("derived", {})
    series = given.pop("series", [])
    found = figures(**given)
    return {
        "key": f"{arm}.{load['kind']}.{load.get('concurrency', 0)}.{repetition}",
        "arm": arm,
        "repetition": repetition,
        "load": load,
        "verdict": "measured",
        "requests": 3,
        "figures": found,
        "groups": {group: found} if group else {},
        "derived": derived,
        "series": series,
    }


def made(experiment: str, arms: list[dict[str, Any]], cells: list[dict[str, Any]], **more: Any) -> Results:
    about = {"schema": SCHEMA, "name": f"{experiment}-x", "experiment": experiment, "host": "x", "tool": "sparkwright"}
    return Results.model_validate({**about, "arms": arms, "cells": cells, **more})


def ab() -> Results:
    """Return results of two arms with two turns each, with data for every chart of an A/B experiment."""
    pick = random.Random(1)
    cells = []
    for turn in (1, 2):
        for arm, worse in (("a", 1.0), ("b", 6.0)):
            at = [0.02 * n for n in range(1, 120)]
            gaps = [pick.uniform(20, 23) * (worse * 8 if n == 60 else 1) for n in range(119)]
            series = [{"at_s": at, "gap_ms": gaps, "long_at_s": [1.0]}]
            hol1 = {"kind": "hol1", "streams": 3, "output_tokens": 256, "long_tokens": 16384}
            given = {"largest_gap_ms": 500 * worse + turn, "stall_ms": 900 * worse, "stalls": 4}
            cells.append(
                cell(arm, hol1, turn, group="decoding", series=series, derived={"long_ttft_ms": 4100.0}, **given)
            )
            hol2 = {"kind": "hol2", "shorts": 3, "prompt_tokens": 256, "long_tokens": 16384}
            message = {
                "short_alone_ttft_mean_ms": 120.0,
                "short_ttft_mean_ms": 4000.0 / worse + turn,
                "long_ttft_ms": 4100.0,
            }
            cells.append(cell(arm, hol2, turn, group="short", derived=message))
            for streams in (1, 8):
                rate = 45.0 * streams**0.7 + turn
                cells.append(
                    cell(arm, {"kind": "serve", "concurrency": streams, "requests": 16}, turn, output_tok_per_s=rate)
                )
    arms = [
        {
            "name": "a",
            "title": "chunked prefill on",
            "max_num_batched_tokens": 4096,
            "effective": {"chunked_prefill": True},
        },
        {"name": "b", "title": "<b>chunked prefill</b> off", "effective": {"chunked_prefill": False}},
    ]
    return made("ab", arms, cells, sandbox=True)


def sweep() -> Results:
    """Return results of three sizes, one of them refused."""
    cells = []
    for size in (1024, 4096):
        given = {"ttft_p50_ms": 400000 / size, "itl_p99_ms": size / 4}
        cells.append(cell(str(size), {"kind": "serve", "concurrency": 8, "requests": 32}, **given))
    arms = [
        {"name": str(size), "title": f"max-num-batched-tokens {size}", "max_num_batched_tokens": size}
        for size in (512, 1024, 4096)
    ]
    arms[0]["refused"] = {"rule": "block-size", "sentence": "a block of 2096 tokens is larger than a step of 512."}
    return made("sweep", arms, cells)


def swept(*values: Any) -> Results:
    """Return results of one flag swept over values, or of two flags over pairs; the last arm was not started."""
    names = ("speculative-config.num_speculative_tokens", "max-num-seqs")
    load, arms, cells = {"kind": "serve", "concurrency": 8, "requests": 32}, [], []
    for number, value in enumerate(values):
        each = value if isinstance(value, tuple) else (value,)
        arms.append({"name": str(number), "title": f"arm {number}", "at": dict(zip(names, each, strict=False))})
        if number < len(values) - 1:
            cells.append(cell(str(number), load, output_tok_per_s=100.0 + 10 * number))
    return made("sweep", arms, cells)
