"""The accuracy and cost of the streaming client, compared with a server's own record and with other clients.

    make bench-measuring                (or: .venv/bin/python benchmarks/measuring.py [STREAMS ...])

It needs a C compiler. The peers are vLLM's own request function, where a Python has it (`make test-engine`, or
ENGINE_PYTHON), and guidellm and aiperf, installed into .bench/clients once (7 GB; CLIENTS_VENV names another venv that has them).
Server and client are processes of their own; the clients take turns, so that they meet the same machine; medians of RUNS.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TOP = Path(__file__).parent.parent
sys.path[:0] = [str(TOP), str(TOP / "src")]

from benchmarks.clients import TOKENS, Absent, Said, command_lines, libraries
from sparkwright.engines import openai_api
from sparkwright.engines.vllm.http import HTTP
from sparkwright.measure import figures, stream, throughput

RATE = 50
FIRST_S = 0.2
IDEAL_S = FIRST_S + (TOKENS - 1) / RATE
RUNS = 3
STREAMS = (8, 64, 256)
#: less than this share of a program's start is what its start varies by, and says nothing of its requests
START_SCATTER = 0.1

Client = libraries.Library | command_lines.CommandLine
#: times of one stream: (time to the first token, gaps between its chunks), seconds
Times = tuple[float, list[float]]


@dataclass(frozen=True)
class Row:
    """A client compared with the server's record: errors in ms, signed. said, served: of the ideal aggregate.

    served is by the server's own clock, until it had sent the last token. None: the client can't say, or it can't be told.
    """

    ttft_ms: float
    gap_ms: float | None
    said: float
    served: float
    cpu_us: float | None
    start_s: float


def main() -> None:
    """Print the tables."""
    streams = [int(word) for word in sys.argv[1:]] or list(STREAMS)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {RATE} tok/s a stream, medians of {RUNS}")
    clients = present()
    with tempfile.TemporaryDirectory(prefix="me-") as folder:
        many_streams(clients, streams, Path(folder))
        stall(clients, Path(folder))
    rates()
    gate()
    print(f"load {os.getloadavg()[0]:.1f} at the end")


def present() -> list[Client]:
    """Return our client and the other installed ones."""
    found: list[Client] = [libraries.ours()]
    ways: list[Callable[[], Client]] = [libraries.vllm]
    ways += [functools.partial(command_lines.installed, name) for name in command_lines.PINNED]
    for way in ways:
        try:
            found.append(way())
        except Absent as error:
            print(f"left out: {error}")
    return found


@functools.cache
def program() -> str:
    """Return the compiled exact server; one in Python would dominate the measurement of its clients."""
    path = Path(tempfile.mkdtemp(prefix="exact-")) / "exact_server"
    atexit.register(shutil.rmtree, path.parent)
    subprocess.run(["cc", "-O2", "-o", str(path), str(Path(__file__).parent / "exact_server.c")], check=True)
    return str(path)


@contextmanager
def server(
    *,
    first_s: float = FIRST_S,
    gap_s: float = 1 / RATE,
    per_chunk: int = 1,
    chunks: int = TOKENS,
    stall_at: int = 0,
    stall_s: float = 0,
) -> Iterator[str]:
    """Run the exact server on a schedule, and yield its URL."""
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


@dataclass(frozen=True)
class Truth:
    """The server's own record. wall_s: from the first request to the last token."""

    times: list[Times]
    wall_s: float

    @property
    def gaps_s(self) -> list[float]:
        """The times of all streams, ascending."""
        return sorted(gap for _, gaps in self.times for gap in gaps)


def record(url: str) -> Truth:
    """The server's own times of each stream."""
    with urllib.request.urlopen(f"{url}/record") as answer:
        found = json.loads(answer.read())
    times = [
        (sent[0][0] - received_s, [b[0] - a[0] for a, b in itertools.pairwise(sent)]) for received_s, sent in found
    ]
    return Truth(times, max(sent[-1][0] for _, sent in found) - min(received_s for received_s, _ in found))


def many_streams(clients: Sequence[Client], counts: Sequence[int], folder: Path) -> None:
    """Print the table of streams and the comparison of the other clients with ours."""
    print(f"{'client':>9} {'streams':>7} {'TTFT p50':>12} {'gap p50':>12} {'of ideal':>9} {'server':>7}", end="")
    print(f" {'CPU a token':>12} {'start, CPU':>11}")
    for count in counts:
        starts = {client.name: start_s(client, count, folder) for client in clients}
        rows: dict[str, list[Row]] = {client.name: [] for client in clients}
        for _ in range(RUNS):
            for client in clients:
                rows[client.name].append(row(client, count, starts[client.name], folder))
        found = {name: middle(some) for name, some in rows.items()}
        for name, one in found.items():
            print(line(name, count, one), flush=True)
        for name in list(found)[1:]:
            print(ratios(name, found[name], found["ours"]), flush=True)


def start_s(client: Client, streams: int, folder: Path) -> float | None:
    """Return the CPU time of a program's start; a library's is measured in each of its runs."""
    if isinstance(client, libraries.Library):
        return None
    with server() as url:
        return client.start_cpu_s(url, streams, folder)


def row(client: Client, streams: int, started_s: float | None, folder: Path) -> Row:
    """Run a client once against a new server."""
    with server() as url:
        said = client.run(url, streams, folder)
        truth = record(url)
    if len(said.ttft_s) != streams or len(truth.times) != streams:
        sys.exit(f"{client.name} says {len(said.ttft_s)} streams, the server {len(truth.times)}, asked were {streams}")
    ideal = streams * TOKENS / IDEAL_S
    start, cpu_s = costs(said, started_s)
    return Row(
        ttft_ms=1000 * (statistics.median(said.ttft_s) - statistics.median(first for first, _ in truth.times)),
        gap_ms=1000 * (p50(said.gaps_s) - p50(truth.gaps_s)) if said.gaps_s else None,
        said=said.tok_per_s / ideal,
        served=streams * TOKENS / truth.wall_s / ideal,
        cpu_us=1e6 * cpu_s / (streams * TOKENS) if cpu_s is not None else None,
        start_s=start,
    )


def costs(said: Said, started_s: float | None) -> tuple[float, float | None]:
    """Return the CPU seconds of start and requests; None for the requests if below the variation of a program's start."""
    if said.request_cpu_s is not None:
        return said.cpu_s - said.request_cpu_s, said.request_cpu_s
    assert started_s is not None
    more_s = said.cpu_s - started_s
    return started_s, more_s if more_s > START_SCATTER * started_s else None


def p50(ordered: Sequence[float]) -> float:
    """Return the median of ascending times."""
    return figures.percentile(ordered, 50)


def middle(rows: Sequence[Row]) -> Row:
    """Return the medians, or None if a run has no value."""
    middles: dict[str, Any] = {}
    for name in Row.__dataclass_fields__:
        column = [getattr(one, name) for one in rows]
        middles[name] = None if None in column else statistics.median(column)
    return Row(**middles)


def line(name: str, count: int, one: Row) -> str:
    """Return a row of the table."""
    gap = f"{one.gap_ms:>+9.3f} ms" if one.gap_ms is not None else f"{'none':>12}"
    cpu = f"{one.cpu_us:>9.0f} us" if one.cpu_us is not None else f"{'?':>12}"
    shares = f"{one.said:>9.1%} {one.served:>7.1%}"
    return f"{name:>9} {count:>7} {one.ttft_ms:>+9.2f} ms {gap} {shares} {cpu} {one.start_s:>9.1f} s"


def ratios(name: str, peer: Row, ours: Row) -> str:
    """Return a client's difference from ours."""
    ttft = f"TTFT error {abs(peer.ttft_ms) / max(abs(ours.ttft_ms), 0.001):.0f}x"
    cpu = f"CPU a token {peer.cpu_us / ours.cpu_us:.1f}x" if peer.cpu_us and ours.cpu_us else "CPU a token ?"
    return f"{name:>9} / ours: {ttft}, {cpu}, aggregate {peer.said / ours.said:.2f}x"


def stall(clients: Sequence[Client], folder: Path) -> None:
    """Print what each client reports about a stall in every stream."""
    for client in clients:
        with server(chunks=60, stall_at=30, stall_s=1.0) as url:
            said, truth = client.run(url, 8, folder), record(url)
        print(
            f"a stall of {truth.gaps_s[-1]:.3f} s in each of 8 streams: {client.name:>9} says largest"
            f" {said.largest_s:.3f} s, p99 of ITL {said.itl_p99_s:.3f} s",
            flush=True,
        )


def rates() -> None:
    """Print the decode rate with several tokens per chunk."""
    for per_chunk in (1, 3, 8):
        with server(gap_s=per_chunk / RATE, per_chunk=per_chunk) as url:
            found = stream.measure_stream(url, openai_api.build_stream_request(HTTP, "m", "hello", TOKENS))
            (_first, gaps) = record(url).times[0]
        true = (found.points[-1][1] - per_chunk) / sum(gaps)
        assert found.tok_per_s is not None
        print(f"{per_chunk} tokens a chunk: {found.tok_per_s:.3f} tok/s, error {abs(found.tok_per_s / true - 1):.3%}")


def gate() -> None:
    """Print the duration of the throughput test on the server that it is intended for."""
    with server(gap_s=1 / 47) as url:
        baseline = throughput.Baseline(dict.fromkeys(throughput.PROMPTS, 47.0), deviation=0.0, runs=5)
        started_s = time.perf_counter()
        found = throughput.measure_decode_rate(HTTP, url, "m", bounds=throughput.Bounds(expected=47), baseline=baseline)
        took_s = time.perf_counter() - started_s
    print(f"smoke test of 47 tok/s: {found.verdict}, {found.tok_per_s:.2f} tok/s, {took_s:.1f} s")


if __name__ == "__main__":
    main()
