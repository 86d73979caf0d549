"""The speed of model downloads and their verification, compared with the bare tools in one run.

    make bench-models          (or: .venv/bin/python -m benchmarks.models [MEGABYTES ROUNDS [PART ...]])

A hub on loopback, in a separate process, serves files from the page cache; it shares the cores with its clients. The bare
tools are huggingface_hub and hf_transfer, run by the same Python, and parallel `sha256sum`. The goals: 0.95 times the rate
of bare hf_transfer, 0.95 times that of bare huggingface_hub, 5 times that of `plain` if a connection is limited to 40 MB/s,
0.9 times that of sha256sum, a verified no-op of 35 GB in 14 files in less than 0.2 s, and less than 300 MB of memory on the
host's side.
"""

import contextlib
import hashlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from benchmarks.common import TOP
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.state import StateFolder

HUB = """
import sys, time, socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
folder, rate = Path(sys.argv[1]), float(sys.argv[2])
class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        path = folder / self.path.split("/resolve/")[1].split("/", 1)[1]
        size = path.stat().st_size
        range_header = self.headers.get("Range", "")
        first, _, last = range_header.removeprefix("bytes=").partition("-")
        begin = int(first or 0)
        end = min(int(last), size - 1) if last else size - 1
        self.send_response(206 if range_header else 200)
        self.send_header("ETag", '"' + (path.parent / (path.name + ".etag")).read_text() + '"')
        self.send_header("X-Repo-Commit", "c" * 40)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin + 1))
        if range_header:
            self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.flush()
        try:
            with path.open("rb") as file:
                if not rate:
                    self.connection.sendfile(file, begin, end - begin + 1)
                    return
                started, sent = time.monotonic(), 0
                while sent < end - begin + 1:
                    count = min(1 << 18, end - begin + 1 - sent)
                    self.connection.sendfile(file, begin + sent, count)
                    sent += count
                    time.sleep(max(0.0, sent / rate - (time.monotonic() - started)))
        except OSError:
            self.close_connection = True
    do_HEAD = do_GET
    def log_message(self, *words):
        pass
class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256
server = Server(("127.0.0.1", 0), Hub)
print(server.server_address[1], flush=True)
server.serve_forever()
"""

BARE = """
import os, sys
from concurrent.futures import ThreadPoolExecutor
url, folder, names = sys.argv[1], sys.argv[2], sys.argv[3:]
ranges = os.environ.get("BARE_RANGES") == "1"
if ranges:
    import hf_transfer
else:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars
    disable_progress_bars()
def download(name):
    if ranges:
        hf_transfer.download(f"{url}/lab/bench/resolve/{'c' * 40}/{name}", f"{folder}/{name}", 100, 10 * 2**20, 3, 5)
    else:
        hf_hub_download("lab/bench", name, revision="c" * 40, local_dir=folder, endpoint=url, token=False)
with ThreadPoolExecutor(1 if ranges else 8) as pool:
    list(pool.map(download, names))
"""

OURS = """
import json, resource, sys, time
from pathlib import Path
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder
from sparkwright.host.models.transfer import Transfer
from sparkwright.host.runs.context import RunContext
arrivals, verify = [], Transfer._verify_file
Transfer._verify_file = lambda self, file: (arrivals.append(time.perf_counter()), verify(self, file))[1]
home, url, mode, files = Path(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(Path(sys.argv[4]).read_text())
context = RunContext(machine=Machine(home=home, hub_url=url), state=StateFolder.in_home(home), run_id="run", emit=lambda _: None)
started = time.perf_counter()
result = HfModel().run(HfModel.Args(id="lab/bench", commit="c" * 40, files=files, dir="~/m", transfer=mode), context)
arrived_s = (arrivals[-1] if arrivals else time.perf_counter()) - started
print(json.dumps({"s": time.perf_counter() - started, "arrived_s": arrived_s}))
"""


class Download(NamedTuple):
    """The seconds of a download, until every byte is verified and until every byte has arrived."""

    verified_s: float
    arrived_s: float


class Bench:
    """The measurements in one folder, which is on the disk that is measured."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.peak_bytes = 0

    @contextlib.contextmanager
    def hub(self, rate: float) -> Iterator[str]:
        """Run a hub that limits each connection to this many bytes per second; 0: no limit."""
        words = [sys.executable, "-c", HUB, str(self.folder / "files"), str(rate)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
            finally:
                process.kill()

    def measure_memory(self, url: str, *modes: str) -> None:
        """Measure memory in separate runs, because repeatedly reading a process's memory slows it down."""
        self.peak_bytes = 0
        for mode in modes:
            self.run(self.create_folder("ours"), url, mode, watched=True)
        print(f"{'  peak memory of runner and transfer (USS), MB':<58} {self.peak_bytes / 1e6:8.0f}", flush=True)

    def create_files(self, sizes: list[int]) -> list[dict[str, Any]]:
        """Write random files of these sizes, and return their entries, as in a lock."""
        shutil.rmtree(self.folder / "files", ignore_errors=True)
        (self.folder / "files").mkdir(parents=True)
        rows = []
        for n, size in enumerate(sizes, 1):
            path, hasher, left = self.folder / f"files/model-{n:05d}.safetensors", hashlib.sha256(), size
            with path.open("wb") as file:
                while left:
                    part = os.urandom(min(left, 1 << 24))
                    file.write(part)
                    hasher.update(part)
                    left -= len(part)
            path.with_name(path.name + ".etag").write_text(hasher.hexdigest())
            rows.append({"path": path.name, "size_bytes": size, "sha256": hasher.hexdigest(), "blob_id": None})
        (self.folder / "rows.json").write_text(json.dumps(rows))
        return rows

    def bare(self, url: str, rows: list[dict[str, Any]], hf_transfer: bool) -> float:
        env = {**os.environ, "BARE_RANGES": str(int(hf_transfer)), "HF_HUB_DISABLE_XET": "1"}
        target = self.create_folder("bare")
        words = [sys.executable, "-c", BARE, url, str(target), *(row["path"] for row in rows)]
        started_s = time.perf_counter()
        subprocess.run(words, env=env, check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - started_s

    def ours(self, url: str, mode: str) -> Download:
        seconds, inner = self.run(self.create_folder("ours"), url, mode)
        return Download(seconds, seconds - inner["s"] + inner["arrived_s"])

    def run(self, home: Path, url: str, mode: str, *, watched: bool = False) -> tuple[float, dict[str, Any]]:
        """Run hf_model in a process like the runner's. watched: record the memory of the process and its children."""
        env = {**os.environ, "PYTHONPATH": str(TOP / "src")}
        words = [sys.executable, "-c", OURS, str(home), url, mode, str(self.folder / "rows.json")]
        started_s = time.perf_counter()
        process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
        ended = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(process.pid, ended))
        if watched:
            watcher.start()
        out, _ = process.communicate()
        seconds = time.perf_counter() - started_s
        ended.set()
        if watched:
            watcher.join()
        return seconds, dict(json.loads(out))

    def watch(self, pid: int, ended: threading.Event) -> None:
        while not ended.wait(0.05):
            try:
                parent = psutil.Process(pid)
                processes = [parent, *parent.children(recursive=True)]
                used_bytes = sum(process.memory_full_info().uss for process in processes)
                self.peak_bytes = max(self.peak_bytes, used_bytes)
            except psutil.Error:
                continue

    def create_folder(self, name: str) -> Path:
        target = self.folder / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        os.sync()  # otherwise this run waits for the disk to write the previous run's files
        return target

    def compare(self, title: str, size: int, ours: Callable[[], Download], theirs: Callable[[], float]) -> None:
        """Run both alternately. Print the medians, and the ratio for the same work: bytes that arrived, not yet verified."""
        times = [(*ours(), theirs()) for _ in range(self.rounds)]
        verified_s, arrived_s, bare_s = (statistics.median(column) for column in zip(*times, strict=True))
        rates = (f"{size / seconds / 1e6:8.0f}" for seconds in (arrived_s, bare_s))
        ratio = f"{bare_s / arrived_s:7.2f}x {size / verified_s / 1e6:8.0f}"
        print(f"{title:<58} {' '.join(rates)} {ratio}", flush=True)

    def compare_downloads(
        self, title: str, url: str, rows: list[dict[str, Any]], mode: str, *, hf_transfer: bool = False
    ) -> None:
        """Compare a mode of hf_model with the bare huggingface_hub, or hf_transfer."""
        size = sum(row["size_bytes"] for row in rows)
        self.compare(title, size, lambda: self.ours(url, mode), lambda: self.bare(url, rows, hf_transfer))


def main() -> None:
    """Print a row per comparison. Arguments: MEGABYTES, ROUNDS, then the parts to run (all if none is named)."""
    megabytes, rounds, *parts = sys.argv[1:] if len(sys.argv) > 2 else [*sys.argv[1:], "2700", "3"][:2]
    bench = Bench(Path(tempfile.mkdtemp(prefix="bench-models-", dir=os.environ.get("BENCH_FOLDER"))), int(rounds))
    print(f"{megabytes} MB, medians of {rounds}, in MB/s; `verified` includes the verification of every byte")
    print(f"{'':<58} {'ours':>8} {'bare':>8} {'ratio':>8} {'verified':>8}")
    try:
        for part in parts or PARTS:
            PARTS[part](bench, int(megabytes) * 10**6)
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)


def one_file(bench: Bench, size: int) -> None:
    """Compare the cost of ranges and of a plain request on a fast hub."""
    rows = bench.create_files([size])
    with bench.hub(0) as url:
        for mode in ("hf_transfer", "plain"):
            bench.compare_downloads(f"{mode}, one file", url, rows, mode, hf_transfer=mode == "hf_transfer")
        bench.measure_memory(url, "hf_transfer", "plain")


def throttled(bench: Bench, size: int) -> None:
    """Limit each connection to 40 MB/s, so that many of them are faster."""
    rows, rounds = bench.create_files([size]), bench.rounds
    with bench.hub(40e6) as url:
        bench.rounds = 1
        for mode in ("hf_transfer", "auto"):
            bench.compare_downloads(f"one file, 40 MB/s a connection: {mode}, bare: plain", url, rows, mode)
        bench.measure_memory(url, "hf_transfer")
    bench.rounds = rounds


def four_files(bench: Bench, size: int) -> None:
    rows = bench.create_files([size // 4] * 4)
    with bench.hub(0) as url:
        bench.compare_downloads("plain, four files", url, rows, "plain")
        bench.measure_memory(url, "plain")


def hashing(bench: Bench, size: int) -> None:
    """Measure verification alone, compared with one sha256sum per core."""
    rows = bench.create_files([size // 4] * 4)
    paths = [str(bench.folder / "files" / row["path"]) for row in rows]

    def ours() -> Download:
        started_s = time.perf_counter()
        assert Manifest(StateFolder(bench.folder), bench.folder / "files", {}).verify(rows) == []
        return Download(*[time.perf_counter() - started_s] * 2)

    def theirs() -> float:
        started_s = time.perf_counter()
        words = ["xargs", "-0", "-n", "1", "-P", str(os.cpu_count()), "sha256sum"]
        subprocess.run(words, input="\0".join(paths).encode(), check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started_s

    bench.compare("hashing four files, bare: sha256sum in parallel", size, ours, theirs)


def no_op(bench: Bench, _size: int) -> None:
    """Measure a second run over 35 GB in 14 sparse files that were verified before."""
    home = bench.create_folder("noop")
    (home / "m").mkdir()
    size_bytes = 2_500_000_000
    file_fields = {"size_bytes": size_bytes, "sha256": "0" * 64, "blob_id": None}
    rows = [{"path": f"model-{n:05d}.safetensors", **file_fields} for n in range(14)]
    manifest = Manifest(StateFolder.in_home(home), home / "m", {})
    for row in rows:
        with (home / "m" / str(row["path"])).open("wb") as file:
            file.truncate(size_bytes)
        manifest.mark_verified(row)
    manifest.save()
    (bench.folder / "rows.json").write_text(json.dumps(rows))
    runs = [bench.run(home, "http://127.0.0.1:1", "plain") for _ in range(bench.rounds)]
    inner_ms = 1000 * statistics.median(inner["s"] for _, inner in runs)
    total_s = statistics.median(seconds for seconds, _ in runs)
    print(f"verified no-op, 35 GB in 14 files: {inner_ms:.1f} ms, {total_s:.2f} s with Python's start and imports")


PARTS: dict[str, Callable[[Bench, int], None]] = {
    "one": one_file, "four": four_files, "throttled": throttled, "hashing": hashing, "noop": no_op,
}  # fmt: skip


if __name__ == "__main__":
    main()
