"""The accuracy of the streaming client against a real llama-server, which reports its own rate and times.

    make bench-llama                (or: .venv/bin/python -m benchmarks.llama)

The server is that of tests/real_llama, with a model of random weights that generates about as fast as one on a Spark. Each
stream's rate, as our client measures it, is divided by the server's own `predicted_per_second`. The time to the first token
is measured alternately by our client and by a reader that only receives from a socket, each minus the server's own
`prompt_ms` for the same request.
"""

import itertools
import json
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

from tests.real_llama import server as servers
from tests.real_llama import tiny_gguf

from benchmarks.common import describe_machine
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
class FirstToken:
    """The time to a first token, and the server's share of it, in milliseconds."""

    ttft_ms: float
    prompt_ms: float

    @property
    def rest_ms(self) -> float:
        return self.ttft_ms - self.prompt_ms


def main() -> None:
    print(f"{describe_machine()}; {TOKENS} tokens a stream, medians of {RUNS} runs")
    with tempfile.TemporaryDirectory(prefix="bench-llama-") as name:
        folder = Path(name)
        model = tiny_gguf.write_model(folder / tiny_gguf.FILE_NAME, SHAPE)
        words = ("-m", str(model), "-c", str(SLOTS * CONTEXT), "-np", str(SLOTS), "-a", "tiny", "--skip-chat-parsing")
        with servers.running_server(folder, *words) as server:
            if not server.wait_until_served():
                sys.exit(server.log)
            print_rates(server.base_url)
            print_first_tokens(server.base_url)
    print(f"{describe_machine()} at the end")


def build_body(tokens: int) -> dict[str, Any]:
    """Return the body of a measured request, whose prompt is not in any cache."""
    return openai_api.build_stream_request(HTTP, "tiny", PROMPT.format(next(numbers)), tokens)


def print_rates(base_url: str) -> None:
    """Print the ratio of our rate to the server's for each stream."""
    print(f"{'streams':>8} {'server, tok/s':>14} {'ours / server':>14} {'farthest':>9}")
    compare_rates(base_url, 1)  # the first request warms up the server
    rows: dict[int, list[tuple[float, float]]] = {1: [], SLOTS: []}
    for _ in range(RUNS):
        for streams in rows:
            rows[streams] += compare_rates(base_url, streams)
    for streams, pairs in rows.items():
        rate, ratio = (statistics.median(column) for column in zip(*pairs, strict=True))
        farthest = max((pair[1] for pair in pairs), key=lambda value: abs(value - 1))
        print(f"{streams:>8} {rate:>14.1f} {ratio:>14.4f} {farthest:>9.4f}", flush=True)


def compare_rates(base_url: str, streams: int) -> list[tuple[float, float]]:
    """Return the server's rate of each stream, and the ratio of ours to it."""
    bodies = [build_body(TOKENS) for _ in range(streams)]
    with ThreadPoolExecutor(streams) as pool, suspend_gc():
        recordings = list(pool.map(lambda body: stream.record(base_url, body), bodies))
    rows = []
    for recording in recordings:
        our_rate = stream.parse_recording(recording, HTTP.token_count_keys).tok_per_s or 0.0
        rate = parse_timings(b"".join(piece for _, piece in recording.pieces))["predicted_per_second"]
        rows.append((rate, our_rate / rate))
    return rows


def parse_timings(answer: bytes) -> dict[str, float]:
    """Return the last timings in a stream, which are the server's figures for the whole stream."""
    last = [line for line in answer.split(b"\n") if b'"timings"' in line][-1]
    return dict(json.loads(last.partition(b"data: ")[2])["timings"])


def print_first_tokens(base_url: str) -> None:
    clients: dict[str, Callable[[str], FirstToken]] = {"ours": measure_ours, "plain socket": measure_plain_socket}
    rows: dict[str, list[FirstToken]] = {name: [] for name in clients}
    for _ in range(FIRST_TOKENS):
        for name, client in clients.items():
            rows[name].append(client(base_url))
    print(f"\n{'client':>13} {'TTFT, ms':>9} {'prompt_ms':>10} {'TTFT - prompt_ms':>17}")
    for name, results in rows.items():
        ttft_ms, prompt_ms, rest_ms = (
            statistics.median(getattr(row, field) for row in results) for field in ("ttft_ms", "prompt_ms", "rest_ms")
        )
        print(f"{name:>13} {ttft_ms:>9.2f} {prompt_ms:>10.2f} {rest_ms:>17.2f}")
    error = statistics.median(own.rest_ms - plain.rest_ms for own, plain in zip(*rows.values(), strict=True))
    print(f"our error: {error:+.2f} ms")


def measure_ours(base_url: str) -> FirstToken:
    """Measure as sparkwright does."""
    recording = stream.record(base_url, build_body(8))
    parsed = stream.parse_recording(recording, HTTP.token_count_keys)
    server_timings = parse_timings(b"".join(piece for _, piece in recording.pieces))
    return FirstToken(1000 * (parsed.ttft_s or 0), server_timings["prompt_ms"])


def measure_plain_socket(base_url: str) -> FirstToken:
    """Measure with only a socket: send the request, and return the time at which the first bytes with text arrived."""
    url = urlsplit(base_url)
    request = stream.build_request(base_url, build_body(8), "")
    with socket.create_connection((url.hostname or "", url.port or 0)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent_s = time.perf_counter()
        connection.sendall(request)
        answer, first_s = b"", 0.0
        while b"data: [DONE]" not in answer:
            piece = connection.recv(1 << 16)
            now_s = time.perf_counter()
            answer += piece
            if not first_s and has_token(answer):
                first_s = now_s
            if not piece:
                sys.exit("the stream ended early")
    return FirstToken(1000 * (first_s - sent_s), parse_timings(answer)["prompt_ms"])


def has_token(answer: bytes) -> bool:
    """Return True if there is a chunk with a generated token; the first chunk has only the role."""
    return b'"predicted_n":' in answer and b'"predicted_n":0' not in answer.rpartition(b"data: ")[2]


if __name__ == "__main__":
    main()
