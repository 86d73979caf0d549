"""The speed and memory use of reading a long log on one core.

    make bench-logs                     (or: .venv/bin/python -m benchmarks.logs [MEGABYTES])

The logs are generated: a real start, then the output of a busy server. The goal: 100 MB in less than 2 s, with constant memory.
"""

import itertools
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.common import TOP, measure
from sparkwright.engines.log import reader
from sparkwright.engines.vllm.log import LOG

START = (TOP / "tests/data/vllm-0.32.0/qwen3next-eager/server.log").read_bytes()
STATISTICS = (
    b"(APIServer pid=1) INFO 11-21 00:08:%02d [loggers.py:335] Engine 000: Avg prompt throughput: 13.4 tokens/s, Avg generation"
    b" throughput: 68.9 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 0.2%%, Prefix cache hit rate: 0.0%%\n"
)
ACCESS = b'INFO:     127.0.0.1:%d - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
DEBUG = b"(EngineCore pid=77) DEBUG 11-21 00:08:%02d [scheduler.py:512] Request chatcmpl-%d: 1 of 8 blocks, budget 2048 left\n"


def build_busy_log(turn: int) -> bytes:
    """Return a busy server's log: many requests between two lines of statistics."""
    return b"".join(ACCESS % (40000 + (turn * 8 + n) % 20000) for n in range(8)) + STATISTICS % (turn % 60)


def build_debug_log(turn: int) -> bytes:
    return b"".join(DEBUG % (turn % 60, turn * 8 + n) for n in range(8))


LOGS: dict[str, Callable[[int], bytes]] = {
    "busy for long": build_busy_log,
    "restarted repeatedly": lambda turn: START,
    "at level DEBUG": build_debug_log,
}


def main() -> None:
    if len(sys.argv) > 2:
        print(measure_reader(Path(sys.argv[1])))
        return
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"{'log':>24} {'MB':>5} {'s':>6} {'CPU s':>6} {'MB/s':>6} {'peak MB':>8}  found")
    for name, body in LOGS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "server.log"
            with path.open("wb") as file:
                file.writelines(build_log(body, megabytes << 20))
            row = measure([sys.executable, "-m", "benchmarks.logs", str(path), "one"], TOP, os.environ).output
            print(f"{name:>24} {row}", end="")


def build_log(body: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """Yield a log of about this size: a start, the body, and another start at the end."""
    yield START
    for turn in itertools.count():
        part = body(turn)
        size -= len(part)
        if size < 0:
            break
        yield part
    yield START


def measure_reader(path: Path) -> str:
    """Read the log in this process, and return the row."""
    started_s, cpu_s = time.perf_counter(), time.process_time()
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with path.open("rb") as file:
        state = reader.read_log(file, LOG)
    seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    peak_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) / 1024
    size_mb = path.stat().st_size / (1 << 20)
    facts = f"version {state.value('version')}, {state.stage}"
    return f"{size_mb:5.0f} {seconds:6.2f} {cpu_s:6.2f} {size_mb / seconds:6.0f} {peak_mb:8.1f}  {facts}"


if __name__ == "__main__":
    main()
