"""Truncated, coloured, damaged and long logs: reading them raises nothing, gives the same state, and takes bounded memory."""

import io
import itertools
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkwright.engines.log import text as log_text
from sparkwright.engines.log.reader import LogReader, read_log
from sparkwright.engines.vllm.log import LOG

DATA = Path(__file__).parents[2] / "data" / "vllm-0.32.0"
LOGS = {path.parent.name: path.read_bytes() for path in sorted(DATA.glob("*/server.log"))}
CASES = pytest.mark.parametrize("case", LOGS)
#: maximum sizes of the chunks in which a log is read
CHUNK_SIZES = (3, 50, 700, 9000, 40000)


def split_randomly(raw: bytes, seed: int, max_bytes: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    offset = 0
    while offset < len(raw):
        size = rng.randint(1, max_bytes)
        yield raw[offset : offset + size]
        offset += size


@pytest.mark.parametrize(("case", "max_bytes"), list(zip(LOGS, itertools.cycle(CHUNK_SIZES), strict=False)))
def test_chunk_boundaries_change_nothing(case: str, max_bytes: int) -> None:
    raw = LOGS["llama-chunked-off"] + LOGS[case]
    assert read_log(split_randomly(raw, max_bytes, max_bytes), LOG).to_json() == read_log(raw, LOG).to_json()


@CASES
def test_bytes_lines_text_and_files_give_the_same_state(case: str) -> None:
    raw = LOGS[case]
    complete = read_log(raw, LOG).to_json()
    reader = LogReader(LOG)
    for line in log_text.iter_lines(raw):
        reader.feed(line)
    assert reader.finish().to_json() == complete
    assert read_log(raw.decode(), LOG).to_json() == complete
    assert read_log(io.BytesIO(raw), LOG).to_json() == complete
    assert read_log(raw.decode().splitlines(keepends=True), LOG).to_json() == complete


def read_values(raw: bytes) -> dict[str, Any]:
    return {name: reading.value for name, reading in read_log(raw, LOG).readings.items()}


@CASES
def test_colour_and_carriage_returns_change_nothing(case: str) -> None:
    raw = LOGS[case]
    complete = read_values(raw)
    coloured = (
        raw.replace(b"(EngineCore", b"\x1b[0;36m(EngineCore")
        .replace(b"pid=", b"pid\x1b[0m=")
        .replace(b"INFO", b"\x1b[32mINFO\x1b[0m")
    )
    assert read_values(coloured) == read_values(raw.replace(b"\n", b"\r\n")) == complete


def test_a_progress_bar_is_read_between_carriage_returns() -> None:
    bar = b"Loading safetensors checkpoint shards:  %d%% Completed | %d/4 [00:01<00:00]\r"
    assert read_log(b"".join(bar % (25 * n, n) for n in range(4)), LOG).shards == (3, 4)


@pytest.mark.parametrize("case", ["hybrid-chunked-on", "err-kv-too-big", "jamba-eager", "err-unknown-arg"])
def test_a_truncated_log_gives_no_partial_values(case: str) -> None:
    raw = LOGS[case]
    complete = read_log(raw, LOG)
    names = ["version", "chunked_prefill", "kv_cache_tokens", "kv_cache_dtype", "block_size", "mamba_cache_mode"]
    for end in range(0, len(raw), max(1, len(raw) // 400)):
        state = read_log(raw[:end], LOG)
        for name in names:
            assert state.value(name) in (None, complete.value(name))
    for begin in range(0, len(raw), max(1, len(raw) // 100)):
        read_log(raw[begin:], LOG)


def test_a_setting_without_its_value_is_unknown() -> None:
    assert read_log("KV cache size: , tokens", LOG).value("kv_cache_tokens") is None


def test_memory_does_not_grow_with_the_log() -> None:
    def repeat_error(thousands: int) -> Iterator[bytes]:
        yield LOGS["jamba-eager"][:20000]
        error = b"(APIServer pid=1) ERROR 11-21 00:00:00 [a.py:1] ValueError: a request that is too long\n" * 1000
        for _ in range(thousands):
            yield error

    def peak(thousands: int) -> int:
        tracemalloc.start()
        read_log(repeat_error(thousands), LOG)
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak_bytes

    peak(3)  # builds tables that are kept
    assert peak(9) < peak(3) * 1.2 + 100_000


def test_an_endless_line_is_cut() -> None:
    reader = LogReader(LOG)
    for _ in range(64):
        reader.push(b"x" * (1 << 20))
    assert len(reader._splitter._remainder) == log_text.LINE_BYTES
    reader.push(b"\nKV cache size: 1,024 tokens\n")
    assert reader.finish().value("kv_cache_tokens") == 1024


def test_the_line_filter_drops_no_relevant_line(monkeypatch: pytest.MonkeyPatch) -> None:
    filtered = {case: read_log(raw, LOG).to_json() for case, raw in LOGS.items()}

    class UnfilteredLines(type(LOG.line_filter)):  # type: ignore[misc]
        def matches_line(self, line: bytes) -> bool:
            return True

    monkeypatch.setitem(vars(LOG), "line_filter", UnfilteredLines(["x"], LOG.noise))
    for case, raw in LOGS.items():
        reader = LogReader(LOG)
        for line in log_text.iter_lines(raw):
            reader.feed(line)
        assert reader.finish().to_json() == filtered[case]
