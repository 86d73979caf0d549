"""Read results of `vllm bench serve`, as JSON or printed text, to compare them with sparkwright's.

As in sparkwright's results, ITL is the gap between chunks, TPOT is per request, and TTFT begins when the request is sent. Times
in lists are in seconds. The keys and lines are those of vLLM 0.9 to 0.33.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkwright.bench.results_file import SCHEMA, Results
from sparkwright.errors import Refused
from sparkwright.measure.figures import STALL_FACTOR, TimeSpread
from sparkwright.trust import bounds
from sparkwright.units import MIB

#: our names of statistics, by vLLM's names
STATISTIC_NAMES = {"mean": "mean", "median": "p50", "p99": "p99"}
METRICS = ("ttft", "itl", "tpot", "e2el")

MAX_TEXT_CHARS = 200
#: size limit of a result, enough for every gap of ten thousand requests
MAX_RESULT_BYTES = 256 * MIB
#: maximum number of values, such as gaps; each needs up to about 100 bytes as a Python object
MAX_JSON_VALUES = 12_000_000
#: keys of vLLM's JSON, by the names of the lines that it prints
KEYS_BY_LINE: Mapping[str, str] = {
    "Successful requests": "completed",
    "Failed requests": "failed",
    "Maximum request concurrency": "max_concurrency",
    "Request rate configured (RPS)": "request_rate",
    "Benchmark duration (s)": "duration",
    "Total input tokens": "total_input_tokens",
    "Total generated tokens": "total_output_tokens",
    "Output token throughput (tok/s)": "output_throughput",
    **{
        f"{word} {metric.upper()} (ms)": f"{word.lower()}_{metric}_ms"
        for metric in METRICS
        for word in ("Mean", "Median", "P99")
    },
}
NUMBER_LINE_PATTERN = re.compile(
    r"^[# \t]{0,40}(?P<name>[A-Za-z0-9][\w /().-]{0,80}?):[ \t]{1,80}(?P<value>[\d.]{1,40}|inf)\s{0,40}?$", re.M
)
LIST_LINE_PATTERN = re.compile(r"\b(?P<name>itls|ttfts)['\"]?\s*[=:]\s*(?P<list>\[[\d\s.,eE\[\]+-]*\])")


def read_results(path: Path) -> Results:
    """Read a file. Raises Refused if it is neither the JSON nor the text of `vllm bench serve`."""
    try:
        text = bounds.read_bytes(path, MAX_RESULT_BYTES).decode(errors="replace")
    except bounds.LimitExceeded as error:
        raise Refused(f"{path} {error}.") from None
    except OSError as error:
        raise Refused(f"{path} can't be read: {error.strerror}.") from None
    data = _parse_json_object(text) or parse_printed(text)
    if not any(f"{word}_{metric}_ms" in data for word in STATISTIC_NAMES for metric in METRICS) and not data.get(
        "itls"
    ):
        raise Refused(
            f"{path} is neither the JSON nor the text of `vllm bench serve`.",
            fix="Such a file contains median_ttft_ms, or a line `Median TTFT (ms):`.",
        )
    return build_results(data, path.stem)


def parse_printed(text: str) -> dict[str, Any]:
    """Return the figures in the printed text, under the keys of the JSON."""
    data: dict[str, Any] = {}
    for number_match in NUMBER_LINE_PATTERN.finditer(text):
        key = KEYS_BY_LINE.get(number_match["name"].strip())
        if key is not None:
            value = _number(number_match["value"])
            data |= {} if value is None else {key: value}
    for match in LIST_LINE_PATTERN.finditer(text):
        try:
            data[match["name"]] = _parse_json(re.sub(r",\s*\]", "]", match["list"]))
        except ValueError:
            continue
    return data


def build_results(data: Mapping[str, Any], name: str) -> Results:
    """Return results with a single cell, for a server about which nothing else is known."""
    rate, requests = _number(data.get("request_rate")), _count(data, "num_prompts") or _count(data, "completed")
    cell = {
        "key": f"vllm.serve.{name}",
        "arm": "vllm bench",
        "load": {
            "kind": "serve",
            "concurrency": _count(data, "max_concurrency"),
            "rate": rate if rate and math.isfinite(rate) else 0,
            "requests": requests,
        },
        "verdict": "imported",
        "seconds": _number(data.get("duration")) or 0,
        "requests": requests,
        "failed_requests": _count(data, "failed"),
        "figures": _build_figures(data),
    }
    return Results.model_validate(
        {
            "schema": SCHEMA,
            "name": name,
            "experiment": "imported",
            "measured_from": "import",
            "created_at": str(data.get("date") or "")[:MAX_TEXT_CHARS],
            "tool": "vllm bench serve",
            "arms": [{"name": "vllm bench", "title": str(data.get("model_id") or "vllm bench serve")[:MAX_TEXT_CHARS]}],
            "cells": [cell],
        }
    )


def _build_figures(data: Mapping[str, Any]) -> dict[str, Any]:
    tokens, wall_s = _count(data, "total_output_tokens"), _number(data.get("duration")) or 0
    throughput = _number(data.get("output_throughput"))
    figures: dict[str, Any] = {
        "streams": _count(data, "completed"),
        "output_tokens": tokens,
        "prompt_tokens": _count(data, "total_input_tokens"),
        "wall_s": wall_s,
        "output_tok_per_s": throughput if throughput is not None else round(tokens / wall_s, 3) if wall_s else 0,
    }
    for metric in METRICS:
        reported_values = {
            kind: _number(data.get(f"{vllm_kind}_{metric}_ms")) for vllm_kind, kind in STATISTIC_NAMES.items()
        }
        figures |= {f"{metric}_{kind}_ms": value for kind, value in reported_values.items() if value is not None}
    if figures.get("tpot_p50_ms"):
        figures["stream_tok_per_s"] = round(1000 / figures["tpot_p50_ms"], 3)
    return {**_gap_figures(data), **figures}


def _gap_figures(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures that require individual times: the spreads of gaps and TTFT, the largest gap, and the stalls."""
    figures: dict[str, Any] = {}
    gaps, first_token_times = _flatten(data.get("itls")), _flatten(data.get("ttfts"))
    for name, values in (("itl", gaps), ("ttft", first_token_times)):
        spread = TimeSpread.from_values(values)
        figures |= spread.to_json(name) if spread else {}
    if gaps:
        limit_s = STALL_FACTOR * statistics.median(gaps)
        stalls = [gap for gap in gaps if gap > limit_s]
        figures |= {"largest_gap_ms": round(max(gaps) * 1000, 3), "stalls": len(stalls)}
        figures["stall_ms"] = round(sum(stalls) * 1000, 3)
    return figures


def _flatten(values: Any) -> list[float]:
    """Return the numbers of a list, or of a list of lists."""
    items = values if isinstance(values, list) else []
    rows = (item if isinstance(item, list) else [item] for item in items)
    return [number for row in rows for item in row if (number := _number(item)) is not None]


def _parse_json_object(text: str) -> dict[str, Any]:
    """Return the JSON object in a text, or on its last line (`--append-result`); empty if there is none."""
    for candidate in (text, *text.strip().splitlines()[-1:]):
        try:
            document = bounds.sanitize(_parse_json(candidate))
        except ValueError:
            continue
        if isinstance(document, dict):
            return document
    return {}


def _parse_json(text: str) -> Any:
    """Parse a JSON text. Raises ValueError if it is invalid, too long or has too many values."""
    return bounds.parse_json(text, max_bytes=MAX_RESULT_BYTES, max_values=MAX_JSON_VALUES)


def _count(data: Mapping[str, Any], name: str) -> int:
    return int(_number(data.get(name)) or 0)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    number = bounds.parse_number(str(value)) if isinstance(value, str) or abs(value) <= bounds.MAX_COUNT else None
    return number if number is not None and number >= 0 else None
