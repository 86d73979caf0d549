"""From the words of a log to values: truth, numbers, times. What is no such word is None, which is unknown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sparkwright.engines.vllm.logs import log_lines


def value_of(name: str, text: str) -> Any:
    """The value of a reading from its word in the log; a name that is not listed in TYPES is a word."""
    return TYPES.get(name, str)(text)


def _complete(text: str) -> int | None:
    digits = text.replace(",", "")
    return int(digits) if 0 < len(digits) < 20 else None


def _number(text: str) -> float | None:
    return float(text) if text.count(".") < 2 and text != "." else None


TYPES: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("chunked_prefill", "prefix_caching"), lambda text: text == "True"),
    **dict.fromkeys(("block_size", "kv_cache_tokens", "max_model_len"), _complete),
    **dict.fromkeys(("max_concurrency", "weights_s", "compile_s", "graphs_s", "init_s"), _number),
    "quantization": lambda text: "none" if text == "None" else text,
    "cudagraph_mode": lambda text: log_lines.CUDAGRAPH_NUMBERS.get(re.sub(r", ?", ", ", text), text),
}


def clock(line: str) -> datetime | None:
    """The time of a line; vLLM's tell no year, so that of a leap year."""
    found = log_lines.CLOCK.search(line)
    if found is None:
        return None
    month, day, hour, minute, second = (int(part) for part in found.groups()[:5])
    try:
        return datetime(2024, month, day, hour, minute, second, int(found.group(6) or 0) * 1000)
    except ValueError:
        return None


def seconds_between(begin: datetime, end: datetime) -> float:
    """Between two times without a year: a start that ends before it began went on into the next year."""
    if end < begin - timedelta(days=180):
        end += timedelta(days=366)
    return max(0.0, round((end - begin).total_seconds(), 3))
