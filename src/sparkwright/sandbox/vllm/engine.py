"""One run of the pretend engine, from its arguments to its exit code."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sparkwright.sandbox.memory import LINGER_S, TOTAL, Pool
from sparkwright.sandbox.vllm import rules, startup
from sparkwright.sandbox.vllm.command_line import config_file
from sparkwright.sandbox.vllm.command_line.arguments import Refused, parse
from sparkwright.sandbox.vllm.config import Config, build, read_model
from sparkwright.sandbox.vllm.metrics import Metrics
from sparkwright.sandbox.vllm.prefix_cache import PrefixCache
from sparkwright.sandbox.vllm.steps import Steps
from sparkwright.sandbox.vllm.tokens import Tokenizer
from sparkwright.sandbox.web import Handler, Server
from sparkwright.units import GIB

FAST = 47.0  # tokens a second of one stream: Qwen3.5-35B-A3B FP8 on a GB10
SLOW = 5.7
ON_CPU = 2.9  # of a Spark's twenty cores
KILLED, TERMINATED = 137, 143
POLL_S = 0.05


class Engine:
    """argv: what follows `vllm serve`. api: its HTTP side. folder_of: where a path of the container stands. listen: address and port.

    pool: where its memory comes from, under the name holder; None takes none. fault: what is broken now, or "".
    on_gpu: told how many bytes of the GPU it holds, when that changes.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        api: type[Handler],
        version: str,
        log: Callable[[str], None],
        folder_of: Callable[[str], Path],
        listen: tuple[str, int] | None,
        pool: Pool | None = None,
        holder: str = "vllm",
        fault: Callable[[], str] = lambda: "",
        on_gpu: Callable[[int], None] = lambda size_bytes: None,
    ) -> None:
        self.version = version
        self.log = log
        self.fault = fault
        self.stopped = threading.Event()
        self.dead = False
        self.device = "cuda"
        self.damaged = False
        self.steps = Steps()
        self.tokenizer = Tokenizer()
        self.config: Config
        self.cache: PrefixCache
        self.metrics: Metrics
        self._argv = list(argv)
        self._api = api
        self._folder_of = folder_of
        self._listen = listen
        self._pool = pool
        self._holder = f"{holder} {secrets.token_hex(4)}"
        self._on_gpu = on_gpu
        self._code = 0
        self._instant = os.environ.get("SPARKWRIGHT_SANDBOX_SPEED") == "instant"

    @property
    def tok_per_s(self) -> float:
        """Tokens a second of one stream."""
        if self.device == "cpu":
            return ON_CPU
        return SLOW if self.fault() in ("slow", "power") else FAST

    def run(self) -> int:
        """Start, serve until stopped, and return the exit code."""
        server = None
        self.device = "cpu" if self.fault() == "cpu-only" else "cuda"
        self.damaged = self.fault() == "other-text"
        try:
            arguments = parse(config_file.pulled(self._argv, self._folder_of), self.version)
            self._say(startup.banner(arguments, self.version))
            host, port = self._listen or (arguments.text("host", "0.0.0.0"), arguments.number("port", 8000))
            server = Server(port, self._api, self, host=host)
            folder = self._folder_of(arguments.model)
            model = read_model(arguments.model, folder)
            self._say(startup.resolved(str(model["architectures"][0])))
            self.config = build(arguments, model, folder, self.version)
            self._say(startup.decided(self.config, arguments, self.version))
            rules.before_weights(self.config, self.version)
            if self.fault() == "crash-loop":
                self.stopped.wait(0.3)
                return self._last_words(startup.crashing(), 1)
            if not self._take_memory():
                free = 41.3 if self.fault() == "oom" else (self._pool.available if self._pool else 0) / GIB
                return self._last_words(startup.no_memory(self.config, free, TOTAL / GIB), 1)
            return self._serve(server)
        except Refused as refused:
            return self._last_words(str(refused).splitlines(), refused.code)
        except OSError as error:
            answer = ["Traceback (most recent call last):", f"OSError: [Errno {error.errno}] {error.strerror}"]
            return self._last_words(answer, 1)
        finally:
            if server is not None:
                server.stop()
            self._on_gpu(0)
            if self._pool is not None:
                self._pool.release(self._holder, after_s=LINGER_S)

    def _serve(self, server: Server) -> int:
        """Load, open the port and stay until stopped."""
        self._say(startup.loading(self.config, self.version, self.device))
        rules.after_weights(self.config, self.version)
        if self.device == "cuda":
            self._on_gpu(int(self.config.utilization * TOTAL))
        self._say(startup.caching(self.config, self.version, self.device))
        while self.fault() == "slow-start" and not self.stopped.wait(POLL_S):
            pass
        if self.stopped.is_set():
            return self._code or TERMINATED
        self.cache = PrefixCache(self.config)
        self.metrics = Metrics(self.config, self.version, self.cache)
        server.start()
        self._say(startup.serving(self.config, self.version))
        self.stopped.wait()
        return self._code

    def stop(self) -> None:
        """A graceful stop, as SIGTERM asks for."""
        if not self.stopped.is_set() and self.fault() != "stubborn":
            self._last_words(startup.stopping(), 0)
            self.stopped.set()

    def kill(self) -> None:
        """The end by SIGKILL: no last words."""
        self._code = KILLED
        self.stopped.set()

    def die(self) -> None:
        """End with exit code 0 although it should run, as a real engine did on its first request."""
        self.dead = True
        self._last_words(startup.dying(), 0)
        threading.Timer(0.1, self.stopped.set).start()

    def crash(self) -> None:
        """End with exit code 1."""
        self._code = self._last_words(startup.crashing(), 1)
        self.stopped.set()

    def _take_memory(self) -> bool:
        if self._pool is None or self.fault() == "oom":
            return self.fault() != "oom"
        while not self._pool.claim(self._holder, int(self.config.utilization * TOTAL)):
            if self.fault() != "slow-start" or self.stopped.wait(POLL_S):  # it waits for what its own end left behind
                return False
        return True

    def _say(self, lines: Iterable[tuple[float, str]]) -> None:
        for wait_s, line in lines:
            if wait_s and not self._instant and self.stopped.wait(wait_s):
                return
            self.log(line)

    def _last_words(self, lines: Iterable[str], code: int) -> int:
        for line in lines:
            self.log(line)
        return code
