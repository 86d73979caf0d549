"""The memory guard's time from danger to the kill, on an idle machine and next to busy processes, and its cost.

A file simulates the host's /proc/meminfo, and a socket the Docker Engine: the measured time is the guard's own, without Docker's
and the kernel's.

    .venv/bin/python -m benchmarks.guard --rounds 200
"""

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from sparkwright.host.memory.start_guard import ENVIRONMENT, PROGRAM

GIB_KB = 2**20
ID = "ab" * 32
BUSY, MEASURED_S = 4, 30.0
BARE = [sys.executable, "-I", "-S", "-c", "import time\nwhile True: time.sleep(1)"]


@contextlib.contextmanager
def run_busy_processes() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(BUSY):
            process = subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def write_meminfo(root: Path, available_gib: float) -> None:
    """Replace the host's memory figures atomically."""
    new = root / "proc/new"
    new.write_text(
        f"MemTotal: {122 * GIB_KB} kB\nMemFree: {GIB_KB} kB\nMemAvailable: {int(available_gib * GIB_KB)} kB\n"
    )
    new.replace(root / "proc/meminfo")


def measure_kill_s(folder: Path) -> float:
    """Return the seconds from when no memory is available to the request at the engine's socket."""
    address = folder / "engine.sock"
    address.unlink(missing_ok=True)
    (folder / "proc").mkdir(exist_ok=True)
    write_meminfo(folder, 60)
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(address))
        engine.listen()
        words = [sys.executable, "-I", "-S", PROGRAM, "start", str(folder / "one.ring")]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as guard:
            assert guard.stdin is not None and guard.stdout is not None
            guard.stdin.write(f"id {ID}\nname one\naddress {address}\nroot {folder}\n\n".encode())
            guard.stdin.flush()
            guard.stdout.readline()
            connection, _ = engine.accept()
            time.sleep(0.3)
            write_meminfo(folder, 0.1)
            danger_s = time.perf_counter()
            with connection:
                connection.recv(4096)
                took_s = time.perf_counter() - danger_s
            guard.kill()
    return took_s


def measure_cost(words: list[str]) -> tuple[float, dict[str, int]]:
    """Return a process's share of a CPU and its memory in KiB: resident, and unshared."""
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=ENVIRONMENT) as process:
        time.sleep(2)
        proc = Path(f"/proc/{process.pid}")
        before_ns = int((proc / "schedstat").read_text().split()[0])
        time.sleep(MEASURED_S)
        share = (int((proc / "schedstat").read_text().split()[0]) - before_ns) / 1e9 / MEASURED_S
        rows = [line.split() for line in (proc / "smaps_rollup").read_text().splitlines()[1:]]
        memory = {row[0].rstrip(":"): int(row[1]) for row in rows if len(row) > 1}
        process.kill()
    return share, {"resident": memory["Rss"], "own": memory["Private_Clean"] + memory["Private_Dirty"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for label, load in (
            ("idle", contextlib.nullcontext()),
            (f"next to {BUSY} busy processes", run_busy_processes()),
        ):
            with load:
                took = sorted(measure_kill_s(folder) for _ in range(rounds))
            p99 = took[min(len(took) - 1, int(0.99 * len(took)))]
            print(
                f"danger to kill, {label}: p50 {statistics.median(took) * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms ({rounds} rounds)"
            )
        (folder / "service.conf").write_text(f"left {60 * 2**30}\nserver one {ID} 0 0\n")
        bare, _ = measure_cost(BARE)
        share, memory = measure_cost([sys.executable, "-I", "-S", PROGRAM, "service", str(folder)])
        print(
            f"guard of the service: {100 * share:.4f} % of a core ({share / bare:.0f} times a process that only sleeps)"
        )
        print(f"  {memory['resident']} KiB resident, {memory['own']} KiB unshared")


if __name__ == "__main__":
    main()
