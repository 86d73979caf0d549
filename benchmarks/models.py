"""The speed of model downloads and their verification, compared with the bare tools in one run.

    make bench-models          (or: .venv/bin/python benchmarks/models.py [MEGABYTES ROUNDS [PART ...]])

A loopback hub in a process of its own hands out files that already are in the page cache; it shares the cores with its
clients. The peers are huggingface_hub and hf_transfer, by themselves and from this same Python, and `sha256sum` side by side.
The aims: 0.95 x bare hf_transfer, 0.95 x bare huggingface_hub, 5 x plain with 40 MB/s a connection, 0.9 x sha256sum,
a verified no-op of 35 GB in 14 files under 0.2 s, the host's side under 300 MB.
"""

from __future__ import annotations

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

TOP = Path(__file__).parent.parent
sys.path[:0] = [str(TOP), str(TOP / "src")]
ID, COMMIT = "lab/bench", "c" * 40

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
        given = self.headers.get("Range", "")
        first, _, last = given.removeprefix("bytes=").partition("-")
        begin = int(first or 0)
        end = min(int(last), size - 1) if last else size - 1
        self.send_response(206 if given else 200)
        self.send_header("ETag", '"' + (path.parent / (path.name + ".etag")).read_text() + '"')
        self.send_header("X-Repo-Commit", "c" * 40)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin + 1))
        if given:
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
                began, sent = time.monotonic(), 0
                while sent < end - begin + 1:
                    count = min(1 << 18, end - begin + 1 - sent)
                    self.connection.sendfile(file, begin + sent, count)
                    sent += count
                    time.sleep(max(0.0, sent / rate - (time.monotonic() - began)))
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
    os.makedirs(folder)
else:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils import disable_progress_bars
    disable_progress_bars()
def one(name):
    if ranges:
        hf_transfer.download(f"{url}/lab/bench/resolve/{'c' * 40}/{name}", f"{folder}/{name}", 100, 10 * 2**20, 3, 5)
    else:
        hf_hub_download("lab/bench", name, revision="c" * 40, local_dir=folder, endpoint=url, token=False)
with ThreadPoolExecutor(1 if ranges else 8) as pool:
    list(pool.map(one, names))
"""

OURS = """
import json, resource, sys, time
from pathlib import Path
from sparkwright.modules.model.hf_model import HfModel
from sparkwright.host.machine import Machine
from sparkwright.host.state import StateFolder
from sparkwright.host.models.transfer import Transfer
from sparkwright.host.runs.context import RunContext
came, prove = [], Transfer._verify_file
Transfer._verify_file = lambda self, file: (came.append(time.perf_counter()), prove(self, file))[1]
home, url, mode, files = Path(sys.argv[1]), sys.argv[2], sys.argv[3], json.loads(Path(sys.argv[4]).read_text())
context = RunContext(machine=Machine(home=home, hub_url=url), state=StateFolder.in_home(home), run_id="run", emit=lambda _: None)
began = time.perf_counter()
result = HfModel().run(HfModel.Args(id="lab/bench", commit="c" * 40, files=files, dir="~/m", transfer=mode), context)
came_s = (came[-1] if came else time.perf_counter()) - began
found = {"mode": result.data.get("mode", ""), "fetched": len(result.data["fetched"])}
print(json.dumps({"s": time.perf_counter() - began, "came_s": came_s, **found}))
"""


class Ours(NamedTuple):
    """proved_s: until every byte is verified. came_s: until every byte has arrived."""

    proved_s: float
    came_s: float


class Bench:
    """folder: on the disk that is measured."""

    def __init__(self, folder: Path, rounds: int) -> None:
        self.folder, self.rounds = folder, rounds
        self.peak_bytes = 0

    @contextlib.contextmanager
    def hub(self, rate: float) -> Iterator[str]:
        """Run a hub that limits each connection to this many bytes per second; 0: no limit."""
        words = [sys.executable, "-c", HUB, str(self.folder / "files"), str(rate)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
            process.kill()

    def memory(self, url: str, *modes: str) -> None:
        """Measure memory in separate runs, because repeatedly reading a process's memory slows it down."""
        self.peak_bytes = 0
        for mode in modes:
            self.run(self.fresh("ours"), url, mode, watched=True)
        print(f"{'  peak memory of runner and transfer (USS), MB':<58} {self.peak_bytes / 1e6:8.0f}", flush=True)

    def make(self, sizes: list[int]) -> list[dict[str, Any]]:
        """Write random files of these sizes, and return their entries as the lock would have them."""
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
        target = self.fresh("bare")
        words = [sys.executable, "-c", BARE, url, str(target), *(row["path"] for row in rows)]
        began_s = time.perf_counter()
        subprocess.run(words, env=env, check=True, stderr=subprocess.DEVNULL)
        return time.perf_counter() - began_s

    def ours(self, url: str, mode: str) -> Ours:
        seconds, found = self.run(self.fresh("ours"), url, mode)
        return Ours(seconds, seconds - found["s"] + found["came_s"])

    def run(self, home: Path, url: str, mode: str, *, watched: bool = False) -> tuple[float, dict[str, Any]]:
        """Run one hf_model in a process like the runner. watched: the memory of it and its children is recorded."""
        env = {**os.environ, "PYTHONPATH": str(TOP / "src")}
        words = [sys.executable, "-c", OURS, str(home), url, mode, str(self.folder / "rows.json")]
        began_s = time.perf_counter()
        process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True)
        ended = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(process.pid, ended))
        if watched:
            watcher.start()
        out, _ = process.communicate()
        seconds = time.perf_counter() - began_s
        ended.set()
        if watched:
            watcher.join()
        return seconds, dict(json.loads(out))

    def watch(self, pid: int, ended: threading.Event) -> None:
        while not ended.wait(0.05):
            try:
                parent = psutil.Process(pid)
                own = [parent, *parent.children(recursive=True)]
                self.peak_bytes = max(self.peak_bytes, sum(one.memory_full_info().uss for one in own))
            except psutil.Error:
                continue

    def fresh(self, name: str) -> Path:
        target = self.folder / name
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        os.sync()  # the run before has written as much: what of it still waits for the disk is not this one's
        return target

    def compared(self, what: str, size: int, ours: Callable[[], Ours], theirs: Callable[[], float]) -> None:
        """Run both alternately; return the medians and the ratio for the same work: bytes that arrived, unverified."""
        times = [(*ours(), theirs()) for _ in range(self.rounds)]
        proved, came, other = (statistics.median(column) for column in zip(*times, strict=True))
        row = f"{size / came / 1e6:8.0f} {size / other / 1e6:8.0f} {other / came:7.2f}x {size / proved / 1e6:8.0f}"
        print(f"{what:<58} {row}", flush=True)


def main() -> None:
    """Print a row per comparison. Arguments: MEGABYTES, ROUNDS, then the parts to run (all if none is named)."""
    megabytes, rounds, *parts = sys.argv[1:] if len(sys.argv) > 2 else [*sys.argv[1:], "2700", "3"][:2]
    bench = Bench(Path(tempfile.mkdtemp(prefix="bench-models-", dir=os.environ.get("BENCH_FOLDER"))), int(rounds))
    print(f"{megabytes} MB, medians of {rounds}, in MB/s; `proved` is ours with the proof of every byte at its end")
    print(f"{'':<58} {'ours':>8} {'bare':>8} {'ratio':>8} {'proved':>8}")
    try:
        for part in parts or PARTS:
            PARTS[part](bench, int(megabytes) * 10**6)
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)


def one_file(bench: Bench, size: int) -> None:
    """Compare the cost of ranges and of a plain request on a fast hub."""
    rows = bench.make([size])
    with bench.hub(0) as url:
        for mode in ("hf_transfer", "plain"):
            bench.compared(
                f"{mode}, one file",
                size,
                lambda m=mode: bench.ours(url, m),
                lambda m=mode: bench.bare(url, rows, m == "hf_transfer"),
            )
        bench.memory(url, "hf_transfer", "plain")


def throttled(bench: Bench, size: int) -> None:
    """Limit each connection to 40 MB/s, so that many of them are faster."""
    rows, rounds = bench.make([size]), bench.rounds
    with bench.hub(40e6) as url:
        bench.rounds = 1
        for mode in ("hf_transfer", "auto"):
            bench.compared(
                f"one file, 40 MB/s a connection: {mode}, beside bare plain",
                size,
                lambda m=mode: bench.ours(url, m),
                lambda: bench.bare(url, rows, False),
            )
        bench.memory(url, "hf_transfer")
    bench.rounds = rounds


def four_files(bench: Bench, size: int) -> None:
    """Download files in parallel."""
    rows = bench.make([size // 4] * 4)
    with bench.hub(0) as url:
        bench.compared(
            "plain, four files", size, lambda: bench.ours(url, "plain"), lambda: bench.bare(url, rows, False)
        )
        bench.memory(url, "plain")


def hashing(bench: Bench, size: int) -> None:
    """Measure verification alone, compared with one sha256sum per core."""
    rows = bench.make([size // 4] * 4)
    from sparkwright.host.models.manifest import Manifest
    from sparkwright.host.state import StateFolder

    paths = [str(bench.folder / "files" / row["path"]) for row in rows]

    def ours() -> Ours:
        began_s = time.perf_counter()
        assert Manifest(StateFolder(bench.folder), bench.folder / "files", {}).verify(rows) == []
        return Ours(*[time.perf_counter() - began_s] * 2)

    def theirs() -> float:
        began_s = time.perf_counter()
        words = ["xargs", "-0", "-n", "1", "-P", str(os.cpu_count()), "sha256sum"]
        subprocess.run(words, input="\0".join(paths).encode(), check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began_s

    bench.compared("hashing four files, beside sha256sum in parallel", size, ours, theirs)


def no_op(bench: Bench, size: int) -> None:
    """Measure a second run over 35 GB in 14 sparse files that were verified before."""
    home = bench.fresh("noop")
    (home / "m").mkdir()
    rows = [
        {"path": f"model-{n:05d}.safetensors", "size_bytes": 2_500_000_000, "sha256": "0" * 64, "blob_id": None}
        for n in range(14)
    ]
    from sparkwright.host.models.manifest import Manifest
    from sparkwright.host.state import StateFolder

    manifest = Manifest(StateFolder.in_home(home), home / "m", {})
    for row in rows:
        with (home / "m" / str(row["path"])).open("wb") as file:
            file.truncate(int(str(row["size_bytes"])))
        manifest.mark_verified(row)
    manifest.save()
    (bench.folder / "rows.json").write_text(json.dumps(rows))
    runs = [bench.run(home, "http://127.0.0.1:1", "plain") for _ in range(bench.rounds)]
    inside = statistics.median(found["s"] for _, found in runs)
    whole = statistics.median(seconds for seconds, _ in runs)
    del size
    print(f"verified no-op, 35 GB in 14 files: {inside * 1000:.1f} ms, {whole:.2f} s with Python's start and imports")


PARTS: dict[str, Callable[[Bench, int], None]] = {
    "one": one_file,
    "four": four_files,
    "throttled": throttled,
    "hashing": hashing,
    "noop": no_op,
}


if __name__ == "__main__":
    main()
