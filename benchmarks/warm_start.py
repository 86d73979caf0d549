"""How much sooner a real vLLM is ready with the compile caches that a start before it left: cold and warm in one run.

    ENGINE=/path/to/venv MODEL=/path/to/model make bench-warm_start        (docs/testing.md has how to install one for a CPU)

Each start has what a container of sparkwright's has: the variables and folders of engines/vllm/caches.py, and a temporary
folder of its own that is gone with it. A first start that nobody measures brings the programs into the page cache.
PAIRS: of starts, 2.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from sparkwright.engines.compile_caches import CACHE_MOUNT
from sparkwright.engines.vllm.caches import CACHES

READY_S, POLL_S = 1200.0, 0.25
INIT = re.compile(r"init engine .* took ([0-9.]+) s")
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}


def started(engine: Path, model: Path, caches: Path) -> tuple[float, float]:
    """Seconds until it is ready, and of those what the engine itself calls its initialization."""
    port = _free_port()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        for place, name in CACHES.fixed_folders.items():
            (caches / name).mkdir(parents=True, exist_ok=True)
            (Path(folder) / Path(place).name.replace("root", getpass.getuser())).symlink_to(caches / name)
        kept = {name: value.replace(CACHE_MOUNT, str(caches)) for name, value in CACHES.environment.items()}
        words = [str(engine / "bin/vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
        begun_s = time.monotonic()
        server = subprocess.Popen(
            [*words, "--max-model-len", "4096"],
            env={**os.environ, **CPU, **kept, "TMPDIR": folder},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_ready(server, port, begun_s)
            ready_s = time.monotonic() - begun_s
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        log.seek(0)
        found = INIT.search(log.read().decode(errors="replace"))
    return ready_s, float(found[1]) if found else float("nan")


def _wait_ready(server: subprocess.Popen[bytes], port: int, begun_s: float) -> None:
    while server.poll() is None and time.monotonic() - begun_s < READY_S:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.URLError):
            time.sleep(POLL_S)
    raise SystemExit("the engine did not come up")


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def main() -> int:
    """Cold and warm in turn; the medians and their ratios."""
    engine, model = (Path(os.environ[name]) for name in ("ENGINE", "MODEL"))
    caches = Path(tempfile.mkdtemp())
    try:
        started(engine, model, caches)
        rows: dict[str, list[tuple[float, float]]] = {"cold": [], "warm": []}
        for n in range(int(os.environ.get("PAIRS", "2"))):
            for kind in ("cold", "warm"):
                if kind == "cold":
                    shutil.rmtree(caches)
                    caches.mkdir()
                rows[kind].append(started(engine, model, caches))
                total_s, init_s = rows[kind][-1]
                print(
                    f"{n + 1} {kind}: ready after {total_s:.1f} s, of which initialization {init_s:.1f} s", flush=True
                )
    finally:
        shutil.rmtree(caches, ignore_errors=True)
    for n, what in enumerate(("ready", "initialization")):
        cold, warm = (statistics.median(row[n] for row in rows[kind]) for kind in ("cold", "warm"))
        print(f"{what}: warm {warm:.1f} s, cold {cold:.1f} s, {warm / cold:.2f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
