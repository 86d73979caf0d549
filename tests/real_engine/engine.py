"""A real vLLM on this machine's CPU: installed once (install.py), started for each case.

SPARKWRIGHT_ENGINE_VERSION=0.19.1 selects another release, SPARKWRIGHT_ENGINE=/path/to/a/venv an existing installation.
"""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sparkwright.engines.log.reader import LogReader
from sparkwright.engines.vllm import flags
from sparkwright.engines.vllm.log import LOG
from sparkwright.measure import http_probe
from tests.real_engine import tiny_models
from tests.real_engine.releases import install
from tests.real_engine.releases.install import EngineMissing
from tests.remote.sshd import free_port

VERSION = os.environ.get("SPARKWRIGHT_ENGINE_VERSION") or install.NEWEST
#: folder of this release: models made with its transformers, vLLM's cache, runs
FOLDER = install.release_folder(VERSION)
RUNS = FOLDER / "runs"

#: after this time a start has hung; on a busy machine a start can take minutes
STARTS_WITHIN_S = 900.0
LISTENS_WITHIN_S = 60.0
STOPS_WITHIN_S = 30.0

#: the readings depend on the log level INFO, vLLM's default, and are compared with /server_info, which needs the dev mode
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "INFO", "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip


@dataclass(frozen=True)
class Engine:
    """An installed vLLM. models: the folder of the tiny models. cache: vLLM's files that are kept between starts."""

    venv: Path
    models: Path
    cache: Path

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    def environment(self) -> dict[str, str]:
        """Return the engine's environment: this shell's variables that do not change vLLM, and ENVIRONMENT."""
        others = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM_", "PYTHON", "HF_", "TORCH"))}
        return {**others, **ENVIRONMENT, "VLLM_CACHE_ROOT": str(self.cache)}

    def model_config(self, model: str) -> dict[str, Any]:
        """Return a model's config.json; empty if there is no such model."""
        path = self.models / model / "config.json"
        return json.loads(path.read_text()) if path.exists() else {}


def ensure_installed(say: Callable[[str], object] = lambda text: None) -> Engine:
    """Return the engine and its models, which are created if missing. Raises EngineMissing."""
    configured = os.environ.get("SPARKWRIGHT_ENGINE")
    if configured and not install.has_release(Path(configured), VERSION):
        raise EngineMissing(f"SPARKWRIGHT_ENGINE={configured} does not contain vLLM {VERSION}.")
    venv = Path(configured) if configured else install.ensure_installed(VERSION, say)
    engine = Engine(venv, FOLDER / "models", FOLDER / "cache")
    missing = [name for name in tiny_models.KINDS if not (engine.models / name).exists()]
    if missing:
        say(f"making tiny models: {', '.join(missing)}")
        engine.models.mkdir(parents=True, exist_ok=True)
        install.run_quietly([engine.python, tiny_models.__file__, engine.models, *missing])
    return engine


@dataclass
class Server:
    """A start of vLLM, followed by its log until it is ready or has exited. argv: the arguments of `vllm serve`."""

    argv: tuple[str, ...]
    port: int
    log: Path
    process: subprocess.Popen[bytes]
    started_s: float = field(default_factory=time.monotonic)
    took_s: float = 0.0
    stop_s: float = 0.0
    ready: bool = False
    transitions: list[tuple[float, str]] = field(default_factory=list)
    reader: LogReader = field(default_factory=lambda: LogReader(LOG))
    _settled: threading.Event = field(default_factory=threading.Event)
    _pump: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def follow(self) -> None:
        """Start a thread that reads the log."""
        self._pump = threading.Thread(target=self._read_log, daemon=True)
        self._pump.start()

    def settle(self) -> None:
        """Wait until the log is ready and the port is open, or the process has exited. Raises TimeoutError."""
        self._health()
        while not self._settled.wait(0.1) and self.process.poll() is None:
            if time.monotonic() - self.started_s > STARTS_WITHIN_S:
                raise TimeoutError(f"neither ready nor exited after {STARTS_WITHIN_S:g} s; see {self.log}")
        if self.process.poll() is None and not self.reader.state.ready:
            self.process.wait(STOPS_WITHIN_S)
        self._wait_for_port()
        self.took_s = time.monotonic() - self.started_s
        self.ready = self.process.poll() is None
        if not self.ready:
            self._add_transition(f"exited {self.process.returncode}")

    def _wait_for_port(self) -> None:
        """Wait for the port, which opens some milliseconds after "Application startup complete." in the log."""
        deadline_s = time.monotonic() + LISTENS_WITHIN_S
        while self.process.poll() is None and not self._health() and time.monotonic() < deadline_s:
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop the server as Docker does: SIGTERM, then SIGKILL to all its processes."""
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

    def ask(self, path: str) -> http_probe.Response:
        return http_probe.send_request(self.base_url, path)

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        with self.log.open("wb") as copy:
            for raw in self.process.stdout:
                copy.write(raw)
                copy.flush()
                self.reader.push(raw)
                if self.reader.state.ready:
                    self._settled.set()
        self._settled.set()

    def _health(self) -> bool:
        answer = self.ask("/health")
        self._add_transition(f"http {answer.status}" if answer.status else "ConnectionRefusedError")
        return answer.status == 200

    def _add_transition(self, state: str) -> None:
        if not self.transitions or self.transitions[-1][1] != state:
            self.transitions.append((round(time.monotonic() - self.started_s, 2), state))


def start_vllm(
    engine: Engine, words: Sequence[str], output: Any, environment: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[bytes]:
    """Start `vllm serve` with these arguments, in a new session."""
    return subprocess.Popen(
        [engine.venv / "bin" / "vllm", "serve", *words], stdin=subprocess.DEVNULL, stdout=output,
        stderr=subprocess.STDOUT, env={**engine.environment(), **environment}, start_new_session=True,
    )  # fmt: skip


@contextlib.contextmanager
def serving(engine: Engine, argv: Sequence[str], log: Path) -> Iterator[Server]:
    """Run vLLM with these arguments on a free port during the `with` block, which begins when it is ready or has exited."""
    port = free_port()
    words = (*argv, "--host", "127.0.0.1", "--port", str(port))
    log.parent.mkdir(parents=True, exist_ok=True)
    process = start_vllm(engine, words, subprocess.PIPE)
    server = Server(words, port, log, process)
    server.follow()
    try:
        server.settle()
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def serving_ready(engine: Engine, argv: Sequence[str], log: Path) -> Iterator[Server]:
    """Run vLLM as `serving` does, and fail if it does not start."""
    with serving(engine, argv, log) as server:
        assert server.ready, log.read_text()[-3000:]
        yield server


def serve_arguments(model: Path, more: Mapping[str, Any] = MappingProxyType({})) -> list[str]:
    """Return the arguments for a model that is served as `m` without compilation. more: more flags."""
    return [
        *flags.command(str(model), {"served-model-name": "m", "max-model-len": 4096, "enforce-eager": True, **more})
    ]
