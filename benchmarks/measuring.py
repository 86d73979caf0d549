"""How true the streaming client is, against a server whose own record is the truth, and what it costs.

    make bench-measuring                (or: .venv/bin/python benchmarks/measuring.py)

It needs a C compiler. The server is a process of its own; medians of 3. Other clients are measured too where they are
installed: httpx, aiohttp (as vLLM's benchmark uses it). guidellm and aiperf want a tokenizer and gigabytes:
docs/benchmarks.md has their figures.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.engine import endpoints
from sparkwright.measure import figures, load, stream

TOKENS = 128
RATE = 50
RUNS = 3

#: times of one stream: (time to the first token, gaps between its chunks)
Times = tuple[float, list[float]]


@dataclass
class Measured:
    """What a client says of some streams, and the processor time it took, seconds."""

    times: list[Times]
    tokens: int
    wall_s: float
    cpu_s: float


@functools.cache
def program() -> str:
    """The exact server, compiled: one in Python would be measured more than its clients."""
    path = Path(tempfile.mkdtemp(prefix="exact-")) / "exact_server"
    subprocess.run(["cc", "-O2", "-o", str(path), str(Path(__file__).parent / "exact_server.c")], check=True)
    return str(path)


@contextmanager
def server(
    *,
    first_s: float = 0.2,
    gap_s: float,
    per_chunk: int = 1,
    chunks: int = TOKENS,
    stall_at: int = 0,
    stall_s: float = 0,
) -> Iterator[str]:
    """The exact server on a schedule; its URL."""
    numbers = (first_s * 1e6, gap_s * 1e6, chunks, per_chunk, stall_at, stall_s * 1e6)
    process = subprocess.Popen(
        [program(), *(str(round(number)) for number in numbers)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()


def record(url: str) -> list[Times]:
    """The server's own times of each stream."""
    with urllib.request.urlopen(f"{url}/record") as answer:
        found = json.loads(answer.read())
    return [(sent[0][0] - received_s, [b[0] - a[0] for a, b in itertools.pairwise(sent)]) for received_s, sent in found]


def ours(url: str, streams: int) -> Measured:
    """sparkwright's client."""
    requests = [load.Request(body(n)) for n in range(streams)]
    cpu_s = time.process_time()
    found = [one.stream for one in load.run(url, requests) if one.stream]
    cpu_s = time.process_time() - cpu_s
    summed = figures.of(found)
    return Measured([(one.points[0][0], one.gaps_s) for one in found], summed.tokens, summed.wall_s, cpu_s)


def body(n: int) -> dict[str, Any]:
    """The request of a stream."""
    return endpoints.measured_stream("m", f"{n} hello", TOKENS)


def with_httpx(url: str, streams: int) -> Measured:
    """A common way to do it: one AsyncClient, a task a stream."""
    import httpx

    async def one(client: httpx.AsyncClient, n: int) -> list[float]:
        at_s = [time.perf_counter()]
        async with client.stream("POST", url + endpoints.CHAT, json=body(n)) as answer:
            async for line in answer.aiter_lines():
                now_s = time.perf_counter()
                if line.startswith("data:") and spoke(line[5:]):
                    at_s.append(now_s)
        return at_s

    async def all_of_them() -> list[list[float]]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=600, limits=limits) as client:
            return list(await asyncio.gather(*(one(client, n) for n in range(streams))))

    return measured(all_of_them)


def with_aiohttp(url: str, streams: int) -> Measured:
    """As the request function of `vllm bench serve` does it: one session, a task a stream."""
    import aiohttp

    async def one(session: aiohttp.ClientSession, n: int) -> list[float]:
        at_s = [time.perf_counter()]
        async with session.post(url + endpoints.CHAT, json=body(n)) as answer:
            async for line in answer.content:
                now_s = time.perf_counter()
                if line.startswith(b"data:") and spoke(line[5:].decode()):
                    at_s.append(now_s)
        return at_s

    async def all_of_them() -> list[list[float]]:
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            return list(await asyncio.gather(*(one(session, n) for n in range(streams))))

    return measured(all_of_them)


def measured(act: Callable[[], Any]) -> Measured:
    """Times and costs of an asyncio client."""
    cpu_s = time.process_time()
    found = asyncio.run(act())
    cpu_s = time.process_time() - cpu_s
    times = [(one[1] - one[0], [b - a for a, b in itertools.pairwise(one)]) for one in found]
    wall_s = max(one[-1] for one in found) - min(one[0] for one in found)
    return Measured(times, sum(len(one) - 1 for one in found), wall_s, cpu_s)


def spoke(data: str) -> bool:
    """Whether a chunk holds text."""
    if data.strip() == "[DONE]":
        return False
    choices = json.loads(data).get("choices")
    return bool(choices and endpoints.delta_counts(choices[0]["delta"]))


CLIENTS: dict[str, Callable[[str, int], Measured]] = {"ours": ours}
CLIENTS |= {"aiohttp": with_aiohttp} if importlib.util.find_spec("aiohttp") else {}
CLIENTS |= {"httpx": with_httpx} if importlib.util.find_spec("httpx") else {}


def row(client: str, streams: int) -> dict[str, float]:
    """One run of a client against a fresh server."""
    with server(gap_s=1 / RATE) as url:
        found = CLIENTS[client](url, streams)
        truth = record(url)
    ideal_s = 0.2 + (TOKENS - 1) / RATE
    gaps, true_gaps = (sorted(gap for _, gaps in times for gap in gaps) for times in (found.times, truth))
    return {
        "ttft_p50_error_ms": 1000 * abs(p50(found.times) - p50(truth)),
        "gap_p50_error_ms": 1000 * abs(figures.percentile(gaps, 50) - figures.percentile(true_gaps, 50)),
        "of_ideal": found.tokens / found.wall_s / (streams * TOKENS / ideal_s),
        "server_of_ideal": ideal_s / (max(sum(gaps, first) for first, gaps in truth)),
        "cpu_us_a_token": 1e6 * found.cpu_s / found.tokens,
    }


def p50(times: list[Times]) -> float:
    """The median time to the first token."""
    return statistics.median(first for first, _ in times)


def many_streams() -> None:
    """The table of streams."""
    print(
        f"{'client':>8} {'streams':>7} {'TTFT p50 error':>15} {'gap p50 error':>14} {'of ideal':>9} {'CPU a token':>12}"
    )
    for client in CLIENTS:
        for streams in (8, 64, 256):
            rows = [row(client, streams) for _ in range(RUNS)]
            mid = {name: statistics.median(one[name] for one in rows) for name in rows[0]}
            print(
                f"{client:>8} {streams:>7} {mid['ttft_p50_error_ms']:>12.2f} ms {mid['gap_p50_error_ms']:>11.3f} ms"
                f" {mid['of_ideal']:>8.1%} {mid['cpu_us_a_token']:>9.0f} us",
                flush=True,
            )


def rates() -> None:
    """The decode rate with several tokens a chunk, and a stall."""
    for per_chunk in (1, 3, 8):
        with server(gap_s=per_chunk / RATE, per_chunk=per_chunk, chunks=TOKENS // per_chunk) as url:
            found = stream.run(url, body(0))
            _first, gaps = record(url)[0]
        true = (found.tokens - per_chunk) / sum(gaps)
        assert found.tok_per_s is not None
        print(f"{per_chunk} tokens a chunk: {found.tok_per_s:.3f} tok/s, error {abs(found.tok_per_s / true - 1):.3%}")
    with server(gap_s=0.02, chunks=60, stall_at=30, stall_s=1.0) as url:
        summed = figures.of([stream.run(url, body(0))])
    print(
        f"a 1 s stall (and the usual 20 ms): largest gap {summed.largest_gap_s * 1000:.1f} ms, stalls {summed.stalls}"
    )


def main() -> None:
    """Print the tables."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {RATE} tok/s a stream")
    many_streams()
    rates()


if __name__ == "__main__":
    main()
