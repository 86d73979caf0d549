"""The time until a real vLLM is ready, with and without the compile caches of an earlier start, in one run.

    ENGINE=/path/to/venv MODEL=/path/to/model make bench-warm_start        (docs/testing.md says how to install vLLM for a CPU)

Each start has the same environment as a container of sparkwright: the variables and folders of engines/vllm/caches.py, and a
temporary folder that is removed afterwards. A first start, which is not measured, reads the programs into the page cache.
PAIRS is the number of pairs, by default 2.
"""

import getpass
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.remote.sshd import free_port

from sparkwright.engines.compile_caches import CACHE_MOUNT
from sparkwright.engines.vllm.caches import CACHES

READY_S, POLL_S = 1200.0, 0.25
INIT = re.compile(r"init engine .* took ([0-9.]+) s")
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}


def measure_start(engine: Path, model: Path, caches: Path) -> tuple[float, float]:
    """Return the seconds until the engine is ready, and those of the initialization, as the engine reports them."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        for place, name in CACHES.fixed_folders.items():
            (caches / name).mkdir(parents=True, exist_ok=True)
            (Path(folder) / Path(place).name.replace("root", getpass.getuser())).symlink_to(caches / name)
        kept = {name: value.replace(CACHE_MOUNT, str(caches)) for name, value in CACHES.environment.items()}
        words = [str(engine / "bin/vllm"), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
        started_s = time.monotonic()
        server = subprocess.Popen(
            [*words, "--max-model-len", "4096"],
            env={**os.environ, **CPU, **kept, "TMPDIR": folder},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_ready(server, port, started_s)
            ready_s = time.monotonic() - started_s
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
        log.seek(0)
        match = INIT.search(log.read().decode(errors="replace"))
    return ready_s, float(match[1]) if match else float("nan")


def _wait_ready(server: subprocess.Popen[bytes], port: int, started_s: float) -> None:
    while server.poll() is None and time.monotonic() - started_s < READY_S:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.URLError):
            time.sleep(POLL_S)
    raise SystemExit("the engine did not start")


def main() -> int:
    engine, model = (Path(os.environ[name]) for name in ("ENGINE", "MODEL"))
    caches = Path(tempfile.mkdtemp())
    try:
        measure_start(engine, model, caches)
        rows: dict[str, list[tuple[float, float]]] = {"cold": [], "warm": []}
        for n in range(int(os.environ.get("PAIRS", "2"))):
            for kind in ("cold", "warm"):
                if kind == "cold":
                    shutil.rmtree(caches)
                    caches.mkdir()
                rows[kind].append(measure_start(engine, model, caches))
                total_s, init_s = rows[kind][-1]
                print(
                    f"{n + 1} {kind}: ready after {total_s:.1f} s, of which initialization {init_s:.1f} s", flush=True
                )
    finally:
        shutil.rmtree(caches, ignore_errors=True)
    for n, title in enumerate(("ready", "initialization")):
        cold, warm = (statistics.median(row[n] for row in rows[kind]) for kind in ("cold", "warm"))
        print(f"{title}: warm {warm:.1f} s, cold {cold:.1f} s, {warm / cold:.2f} x")
    return 0


if __name__ == "__main__":
    sys.exit(main())
