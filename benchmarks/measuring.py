"""The accuracy and cost of the streaming client, compared with a server's own record and with other clients.

    make bench-measuring                (or: .venv/bin/python -m benchmarks.measuring [STREAMS ...])

It needs a C compiler. The other clients are vLLM's own request function, if a Python has it (`make test-engine`, or
ENGINE_PYTHON), and guidellm and aiperf, installed into .bench/clients once (7 GB; CLIENTS_VENV names another venv that has them).
Server and client are separate processes; the clients alternate, so that they run under the same conditions; medians of RUNS.
"""

import atexit
import functools
import itertools
import json
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

from benchmarks.clients import TOKENS, Absent, Report, command_lines, libraries
from benchmarks.common import describe_machine
from sparkwright.engines import openai_api
from sparkwright.engines.vllm.http import HTTP
from sparkwright.measure import figures, stream, throughput
from sparkwright.measure.http_probe import Target

RATE = 50
FIRST_S = 0.2
IDEAL_S = FIRST_S + (TOKENS - 1) / RATE
RUNS = 3
STREAMS = (8, 64, 256)
#: variation of a program's start time, as a share of it: a smaller difference proves nothing about its requests
START_VARIATION = 0.1

Client = libraries.Library | command_lines.CommandLine
#: times of one stream: (time to the first token, gaps between its chunks), seconds
Times = tuple[float, list[float]]


@dataclass(frozen=True)
class Row:
    """A client compared with the server's record: signed errors in ms; None for unknown values.

    reported and served are shares of the ideal aggregate rate: as the client reports it, and by the server's own clock,
    until it sent the last token.
    """

    ttft_ms: float
    gap_ms: float | None
    reported: float
    served: float
    cpu_us: float | None
    start_s: float


def main() -> None:
    streams = [int(word) for word in sys.argv[1:]] or list(STREAMS)
    print(f"{describe_machine()}; {RATE} tok/s a stream, medians of {RUNS}")
    clients = find_clients()
    with tempfile.TemporaryDirectory(prefix="me-") as folder:
        compare_streams(clients, streams, Path(folder))
        compare_stalls(clients, Path(folder))
    measure_rates()
    measure_smoke_test()
    print(f"{describe_machine()} at the end")


def find_clients() -> list[Client]:
    clients: list[Client] = [libraries.ours()]
    others: list[Callable[[], Client]] = [libraries.vllm]
    others += [functools.partial(command_lines.install, name) for name in command_lines.PINNED]
    for create in others:
        try:
            clients.append(create())
        except Absent as error:
            print(f"left out: {error}")
    return clients


@functools.cache
def compile_server() -> str:
    """Return the path of the compiled exact server; one in Python would dominate the measurement of its clients."""
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
        [compile_server(), *(str(round(number)) for number in numbers)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()


@dataclass(frozen=True)
class Truth:
    """The server's own record. wall_s: seconds from the first request to the last token."""

    times: list[Times]
    wall_s: float

    @property
    def gaps_s(self) -> list[float]:
        """Return the gaps of all streams in ascending order."""
        return sorted(gap for _, gaps in self.times for gap in gaps)


def read_record(url: str) -> Truth:
    """Return the server's own times of each stream."""
    with urllib.request.urlopen(f"{url}/record") as answer:
        rows = json.loads(answer.read())
    times = [
        (chunks[0][0] - received_s, [after[0] - before[0] for before, after in itertools.pairwise(chunks)])
        for received_s, chunks in rows
    ]
    return Truth(times, max(chunks[-1][0] for _, chunks in rows) - min(received_s for received_s, _ in rows))


def compare_streams(clients: Sequence[Client], counts: Sequence[int], folder: Path) -> None:
    """Print the table of streams and the comparison of the other clients with ours."""
    print(f"{'client':>9} {'streams':>7} {'TTFT p50':>12} {'gap p50':>12} {'of ideal':>9} {'server':>7}", end="")
    print(f" {'CPU a token':>12} {'start, CPU':>11}")
    for count in counts:
        starts = {client.name: measure_start_s(client, count, folder) for client in clients}
        rows: dict[str, list[Row]] = {client.name: [] for client in clients}
        for _ in range(RUNS):
            for client in clients:
                rows[client.name].append(measure_row(client, count, starts[client.name], folder))
        medians = {name: median_row(runs) for name, runs in rows.items()}
        for name, row in medians.items():
            print(format_row(name, count, row), flush=True)
        for name in list(medians)[1:]:
            print(format_ratios(name, medians[name], medians["ours"]), flush=True)


def measure_start_s(client: Client, streams: int, folder: Path) -> float | None:
    """Return the CPU time of a program's start; None for a library, whose start is measured in each run."""
    if isinstance(client, libraries.Library):
        return None
    with server() as url:
        return client.start_cpu_s(url, streams, folder)


def measure_row(client: Client, streams: int, program_start_s: float | None, folder: Path) -> Row:
    with server() as url:
        report = client.run(url, streams, folder)
        truth = read_record(url)
    if len(report.ttft_s) != streams or len(truth.times) != streams:
        sys.exit(f"{client.name} reports {len(report.ttft_s)} of {streams} streams, the server {len(truth.times)}")
    ideal = streams * TOKENS / IDEAL_S
    start_s, cpu_s = split_cost(report, program_start_s)
    return Row(
        ttft_ms=1000 * (statistics.median(report.ttft_s) - statistics.median(first for first, _ in truth.times)),
        gap_ms=1000 * (p50(report.gaps_s) - p50(truth.gaps_s)) if report.gaps_s else None,
        reported=report.tok_per_s / ideal,
        served=streams * TOKENS / truth.wall_s / ideal,
        cpu_us=1e6 * cpu_s / (streams * TOKENS) if cpu_s is not None else None,
        start_s=start_s,
    )


def split_cost(report: Report, program_start_s: float | None) -> tuple[float, float | None]:
    """Return the CPU seconds of start and requests; None for requests that cost less than the start's variation."""
    if report.request_cpu_s is not None:
        return report.cpu_s - report.request_cpu_s, report.request_cpu_s
    assert program_start_s is not None
    requests_s = report.cpu_s - program_start_s
    return program_start_s, requests_s if requests_s > START_VARIATION * program_start_s else None


def p50(ordered: Sequence[float]) -> float:
    return figures.percentile(ordered, 50)


def median_row(rows: Sequence[Row]) -> Row:
    """Return the median of each field, or None if a run has no value."""
    values: dict[str, Any] = {}
    for name in Row.__dataclass_fields__:
        column = [getattr(row, name) for row in rows]
        values[name] = None if None in column else statistics.median(column)
    return Row(**values)


def format_row(name: str, count: int, row: Row) -> str:
    gap = f"{row.gap_ms:>+9.3f} ms" if row.gap_ms is not None else f"{'none':>12}"
    cpu = f"{row.cpu_us:>9.0f} us" if row.cpu_us is not None else f"{'?':>12}"
    shares = f"{row.reported:>9.1%} {row.served:>7.1%}"
    return f"{name:>9} {count:>7} {row.ttft_ms:>+9.2f} ms {gap} {shares} {cpu} {row.start_s:>9.1f} s"


def format_ratios(name: str, other: Row, ours: Row) -> str:
    ttft = f"TTFT error {abs(other.ttft_ms) / max(abs(ours.ttft_ms), 0.001):.0f}x"
    cpu = f"CPU a token {other.cpu_us / ours.cpu_us:.1f}x" if other.cpu_us and ours.cpu_us else "CPU a token ?"
    return f"{name:>9} / ours: {ttft}, {cpu}, aggregate {other.reported / ours.reported:.2f}x"


def compare_stalls(clients: Sequence[Client], folder: Path) -> None:
    for client in clients:
        with server(chunks=60, stall_at=30, stall_s=1.0) as url:
            report, truth = client.run(url, 8, folder), read_record(url)
        print(
            f"a stall of {truth.gaps_s[-1]:.3f} s in each of 8 streams: {client.name:>9} reports a largest gap of"
            f" {report.largest_s:.3f} s, p99 of ITL {report.itl_p99_s:.3f} s",
            flush=True,
        )


def measure_rates() -> None:
    """Print the decode rate with several tokens per chunk."""
    for per_chunk in (1, 3, 8):
        with server(gap_s=per_chunk / RATE, per_chunk=per_chunk) as url:
            measured = stream.measure_stream(url, openai_api.build_stream_request(HTTP, "m", "hello", TOKENS))
            (_first, gaps) = read_record(url).times[0]
        true = (measured.points[-1][1] - per_chunk) / sum(gaps)
        assert measured.tok_per_s is not None
        error = abs(measured.tok_per_s / true - 1)
        print(f"{per_chunk} tokens a chunk: {measured.tok_per_s:.3f} tok/s, error {error:.3%}")


def measure_smoke_test() -> None:
    """Print the duration of the throughput test on a server with the expected rate."""
    with server(gap_s=1 / 47) as url:
        baseline = throughput.Baseline(dict.fromkeys(throughput.PROMPTS, 47.0), deviation=0.0, runs=5)
        started_s = time.perf_counter()
        result = throughput.measure_decode_rate(
            Target(HTTP, url, "m"), bounds=throughput.Bounds(expected=47), baseline=baseline
        )
        took_s = time.perf_counter() - started_s
    print(f"smoke test of 47 tok/s: {result.verdict}, {result.tok_per_s:.2f} tok/s, {took_s:.1f} s")


if __name__ == "__main__":
    main()
