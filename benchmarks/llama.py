"""The accuracy of the streaming client against a real llama-server, which reports its own rate and times.

    make bench-llama                (or: .venv/bin/python benchmarks/llama.py)

The server is that of tests/real_llama, with a model of random weights that generates about as fast as one on a Spark. Rates: each
stream's, by our client, over the server's own `predicted_per_second`. Time to the first token: ours, and that of a reader that
does nothing but receive from a socket, in turns, each less the server's own `prompt_ms` of the same request.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TOP = Path(__file__).parent.parent
sys.path[:0] = [str(TOP), str(TOP / "src")]

from tests.real_llama import server as servers
from tests.real_llama import tiny_gguf

from sparkwright.engines import openai_api
from sparkwright.engines.llama_cpp.http import HTTP
from sparkwright.measure import stream
from sparkwright.measure.background import suspend_gc

SHAPE = tiny_gguf.Shape(layers=6, heads=8, kv_heads=4, head=64, inner=2048)
SLOTS, CONTEXT = 4, 8192
TOKENS = 128
RUNS = 7
FIRST_TOKENS = 40
PROMPT = "{}: tell me all that you know about this number."

numbers = itertools.count(1)


@dataclass(frozen=True)
class First:
    """The time to a first token, and the server's share of it, in milliseconds."""

    ttft_ms: float
    prompt_ms: float

    @property
    def rest_ms(self) -> float:
        return self.ttft_ms - self.prompt_ms


def main() -> None:
    """Print both tables."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {TOKENS} tokens a stream, medians of {RUNS} runs")
    with tempfile.TemporaryDirectory(prefix="bench-llama-") as name:
        folder = Path(name)
        model = tiny_gguf.write_model(folder / tiny_gguf.FILE_NAME, SHAPE)
        words = ("-m", str(model), "-c", str(SLOTS * CONTEXT), "-np", str(SLOTS), "-a", "tiny", "--skip-chat-parsing")
        with servers.running_server(folder, *words) as server:
            if not server.wait_until_served():
                sys.exit(server.log)
            rates(server.base_url)
            first_tokens(server.base_url)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


def body(tokens: int) -> dict[str, Any]:
    """Return a measured request whose prompt is in no cache."""
    return openai_api.build_stream_request(HTTP, "tiny", PROMPT.format(next(numbers)), tokens)


# -- rates -------------------------------------------------------------------------------------------------------------------


def rates(base_url: str) -> None:
    """Print the ratio of our rate to the server's for each stream."""
    print(f"{'streams':>8} {'server, tok/s':>14} {'ours / server':>14} {'farthest':>9}")
    compared(base_url, 1)  # the first request warms it up
    found: dict[int, list[tuple[float, float]]] = {1: [], SLOTS: []}
    for _ in range(RUNS):
        for streams, rows in found.items():
            rows += compared(base_url, streams)
    for streams, rows in found.items():
        said, ratio = (statistics.median(column) for column in zip(*rows, strict=True))
        farthest = max((row[1] for row in rows), key=lambda one: abs(one - 1))
        print(f"{streams:>8} {said:>14.1f} {ratio:>14.4f} {farthest:>9.4f}", flush=True)


def compared(base_url: str, streams: int) -> list[tuple[float, float]]:
    """Return the server's rate of each stream, and the ratio of ours to it."""
    with ThreadPoolExecutor(streams) as pool, suspend_gc():
        recordings = list(
            pool.map(lambda asked: stream.record(base_url, asked), [body(TOKENS) for _ in range(streams)])
        )
    rows = []
    for recording in recordings:
        ours_per_s = stream.parse_recording(recording, HTTP.token_count_keys).tok_per_s or 0.0
        said = timings(b"".join(piece for _, piece in recording.pieces))["predicted_per_second"]
        rows.append((said, ours_per_s / said))
    return rows


def timings(answer: bytes) -> dict[str, float]:
    """Return the last timings in a stream, which are the server's figures for all of it."""
    last = [line for line in answer.split(b"\n") if b'"timings"' in line][-1]
    return dict(json.loads(last.partition(b"data: ")[2])["timings"])


# -- the first token -----------------------------------------------------------------------------------------------------------


def first_tokens(base_url: str) -> None:
    """Print our figures and the plain reader's, measured alternately."""
    clients: dict[str, Callable[[str], First]] = {"ours": ours, "plain socket": plain}
    found: dict[str, list[First]] = {name: [] for name in clients}
    for _ in range(FIRST_TOKENS):
        for name, client in clients.items():
            found[name].append(client(base_url))
    print(f"\n{'client':>13} {'TTFT, ms':>9} {'prompt_ms':>10} {'TTFT - prompt_ms':>17}")
    for name, rows in found.items():
        told = (statistics.median([row.ttft_ms for row in rows]), statistics.median([row.prompt_ms for row in rows]))
        print(f"{name:>13} {told[0]:>9.2f} {told[1]:>10.2f} {statistics.median([row.rest_ms for row in rows]):>17.2f}")
    pairs = zip(*found.values(), strict=True)
    error = statistics.median([one.rest_ms - other.rest_ms for one, other in pairs])
    print(f"our error: {error:+.2f} ms")


def ours(base_url: str) -> First:
    """Measure as all of sparkwright's measurements do."""
    recording = stream.record(base_url, body(8))
    found = stream.parse_recording(recording, HTTP.token_count_keys)
    own = timings(b"".join(piece for _, piece in recording.pieces))
    return First(1000 * (found.ttft_s or 0), own["prompt_ms"])


def plain(base_url: str) -> First:
    """Measure with only a socket: send the request, and return the time at which the first bytes with text arrived."""
    where = urlsplit(base_url)
    request = stream.build_request(base_url, body(8), "")
    with socket.create_connection((where.hostname or "", where.port or 0)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent_s = time.perf_counter()
        connection.sendall(request)
        answer, first_s = b"", 0.0
        while b"data: [DONE]" not in answer:
            piece = connection.recv(1 << 16)
            now_s = time.perf_counter()
            answer += piece
            if not first_s and begun(answer):
                first_s = now_s
            if not piece:
                sys.exit("the stream ended early")
    return First(1000 * (first_s - sent_s), timings(answer)["prompt_ms"])


def begun(answer: bytes) -> bool:
    """Return True if there is a chunk with a generated token; the first chunk only has the role."""
    return b'"predicted_n":' in answer and b'"predicted_n":0' not in answer.rpartition(b"data: ")[2]


if __name__ == "__main__":
    main()
