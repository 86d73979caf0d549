"""One run of a simulated server of any engine: its memory, counters, faults and exit."""

from __future__ import annotations

import json
import os
import secrets
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sparkwright.sandbox.faults import GROWING_FAULTS, OTHER_PROGRAM
from sparkwright.sandbox.http_server import Handler, Server
from sparkwright.sandbox.memory import LEAK_BYTES_PER_S, OVERSHOOT_BYTES_PER_S, RELEASE_DELAY_S, TOTAL_BYTES, MemoryPool
from sparkwright.units import GIB

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
#: factor from the size of a model's files in the sandbox to its simulated size
SIZE_SCALE = 1000
CHARS_PER_TOKEN = 4
MAX_CHARS_PER_TOKEN = 17  # length of the longest token; vLLM limits a prompt's length in characters by it
VOCABULARY_SIZE = 151_643
MESSAGE_START, MESSAGE_END = VOCABULARY_SIZE + 1, VOCABULARY_SIZE + 2
GPU_TOK_PER_S = 47.0  # one stream of Qwen3.5-35B-A3B FP8 on a GB10
SLOW_TOK_PER_S = 5.7
CPU_TOK_PER_S = 2.9  # on a Spark's twenty cores
#: host memory of an engine in addition to its GPU share, including /dev/shm; llamastash PR 81: 5.4 to 6.7 GiB
HOST_MEMORY_BYTES = int(5.5 * GIB)
#: temporary memory of a start without compile cache
COMPILE_PEAK_BYTES = 2 * GIB
SIGKILL_EXIT_CODE, SIGTERM_EXIT_CODE = 137, 143
POLL_S, LEAK_POLL_S = 0.05, 0.2
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "::1")


class StartError(Exception):
    """An engine exits during its start, with these last log lines and this exit code."""

    def __init__(self, *texts: str, code: int = 1) -> None:
        super().__init__("\n".join(texts))
        self.lines = str(self).splitlines()
        self.code = code


class Counters:
    """The counters of every engine.

    Attributes:
        mutex: held while a counter is changed.
        held_tokens: KV cache tokens reserved by running requests.
        prompt_tokens: prompt tokens, the sum of computed_tokens and cached_tokens.
        steps: computed prompts and tokens.
        decoded_tokens: generated tokens except the first of each request, which the prefill computes.
        generated_tokens: generated tokens.
        request_s: total duration of finished requests, seconds.
    """

    #: generated tokens are counted at the end of their request, instead of one by one
    counts_at_end = False

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.running = self.waiting = self.held_tokens = 0
        self.prompt_tokens = self.computed_tokens = self.cached_tokens = 0
        self.steps = self.decoded_tokens = self.generated_tokens = 0
        self.request_s = 0.0
        self.finished_by_reason = dict.fromkeys(FINISH_REASONS, 0)

    def add_prompt(self, token_count: int, cached_tokens: int) -> None:
        with self.mutex:
            self.prompt_tokens += token_count
            self.computed_tokens += token_count - cached_tokens
            self.cached_tokens += cached_tokens
            self.steps += 1

    @property
    def step_rate_factor(self) -> float:
        """Factor by which the steps per second differ from those without speculative decoding."""
        return 1.0

    def begin_step(self) -> int:
        """Begin a decode step of one request. Return the number of tokens that it generates."""
        return 1

    def count_token(self, count: int, latency_s: float) -> None:
        """Count a token of a request.

        Args:
            count: tokens of the request so far.
            latency_s: seconds since the previous token, or since the request arrived.
        """
        del latency_s
        with self.mutex:
            self.steps += 1
            self.decoded_tokens += count > 1
            self.generated_tokens += not self.counts_at_end

    def count_request(self, finish_reason: str, token_count: int, duration_s: float) -> None:
        """Count a finished request with its generated tokens and its duration."""
        with self.mutex:
            self.finished_by_reason[finish_reason] += 1
            self.generated_tokens += token_count * self.counts_at_end
            self.request_s += duration_s


class Tokenizer:
    """A tokenizer that assigns an id to each new piece of text when it is encoded. Unassigned ids decode to an empty string."""

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._mutex = threading.Lock()

    def encode(self, text: str) -> list[int]:
        with self._mutex:
            return [
                self._token_id(text[start : start + CHARS_PER_TOKEN]) for start in range(0, len(text), CHARS_PER_TOKEN)
            ]

    def decode(self, ids: Sequence[int]) -> str:
        with self._mutex:
            return "".join(self._texts.get(token_id, "") for token_id in ids)

    def encode_chat(self, messages: Sequence[Any]) -> list[int]:
        """Return the token ids of a rendered chat, up to the assistant's turn."""
        ids: list[int] = []
        for message in messages:
            role, content = (
                (message.get("role", ""), message.get("content", "")) if isinstance(message, dict) else ("", message)
            )
            calls = json.dumps(message["tool_calls"]) if isinstance(message, dict) and message.get("tool_calls") else ""
            ids += [MESSAGE_START, *self.encode(str(role)), *self.encode(_content_text(content) + calls), MESSAGE_END]
        return [*ids, MESSAGE_START, *self.encode("assistant")]

    def _token_id(self, piece: str) -> int:
        token_id = zlib.crc32(piece.encode()) % VOCABULARY_SIZE
        while self._texts.setdefault(token_id, piece) != piece:
            token_id = (token_id + 1) % VOCABULARY_SIZE
            if len(self._texts) >= VOCABULARY_SIZE:
                break
        return token_id


def _content_text(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(str(part.get("text", "<picture>")) for part in content if isinstance(part, dict))
    return str(content or "")


class Limits(Protocol):
    """The settings that limit concurrent requests and prefill."""

    @property
    def max_num_seqs(self) -> int: ...
    @property
    def budget(self) -> int:
        """Maximum number of prompt tokens in one step."""

    @property
    def chunked_prefill(self) -> bool: ...


class Cache(Protocol):
    """A prefix cache."""

    def cache_prompt(self, prompt: Sequence[int]) -> int:
        """Cache a prompt. Return the number of its leading tokens that were already cached."""


class Process(ABC):
    """The process of a simulated server.

    Args:
        argv: command-line arguments after the program's name.
        api: handler of its HTTP API.
        version: version of the engine.
        log: called with each line of its log.
        host_path: returns the host path of a path in the container.
        listen: address and port to listen on; None to use those in `argv`.
        uses_host_network: use the host's network, and therefore the port in `argv`.
        pool: the host's memory, or None to claim no memory.
        holder: name of its claim on the pool; empty to use `default_holder`.
        fault: returns the name of the active fault, or an empty string.
        report_gpu_memory: called with its GPU memory in bytes whenever it changes.
        env: environment variables of its container.
    """

    default_holder = "server"
    crash_code = 1

    def __init__(
        self,
        argv: Sequence[str],
        *,
        api: type[Handler],
        version: str,
        log: Callable[[str], None],
        host_path: Callable[[str], Path],
        listen: tuple[str, int] | None,
        uses_host_network: bool = False,
        pool: MemoryPool | None = None,
        holder: str = "",
        fault: Callable[[], str] = lambda: "",
        report_gpu_memory: Callable[[int], None] = lambda size_bytes: None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.version = version
        self.log = log
        self.fault = fault
        self.stop_event = threading.Event()
        self.dead = False
        self.device = "cuda"
        self.damaged = False
        self.garbled = False
        self.prefill_step = PrefillStep()
        self.tokenizer = Tokenizer()
        self.limits: Limits
        self.cache: Cache
        self.counters: Counters
        self.argv = list(argv)
        self._api = api
        self._host_path = host_path
        self._listen, self._uses_host_network = listen, uses_host_network
        self.env = dict(env or {})
        self._pool = pool
        self._holder = f"{holder or self.default_holder} {secrets.token_hex(4)}"
        self._report_gpu_memory = report_gpu_memory
        self._exit_code = 0
        self._is_stuck = False
        self._server: Server | None = None
        self._instant = os.environ.get("SPARKWRIGHT_SANDBOX_SPEED") == "instant"

    @property
    def is_instant(self) -> bool:
        """True if delays are skipped; never while a fault is active."""
        return self._instant and not self.fault()

    @property
    def has_lost_peer(self) -> bool:
        """True if another rank of its group has exited, so that this rank can't compute anything."""
        return False

    @property
    def tok_per_s(self) -> float:
        """Decode rate of a single stream."""
        if self.device == "cpu":
            return CPU_TOK_PER_S
        return SLOW_TOK_PER_S if self.has_stale_cache or self.fault() in ("slow", "power") else GPU_TOK_PER_S

    @property
    def has_stale_cache(self) -> bool:
        """True if the compile cache of an earlier start slows the engine down."""
        return False

    def run(self) -> int:
        """Start, serve until stopped, release all resources, and return the exit code."""
        self.device = "cpu" if self.fault() == "cpu-only" else "cuda"
        self.damaged = self.fault() == "other-text"
        self.garbled = self.fault() == "garbled"
        try:
            return self.serve()
        finally:
            if self._server is not None:
                self._server.stop()
                self._server = None
            self._report_gpu_memory(0)
            if self._pool is not None:
                self._pool.release(self._holder, delay_s=RELEASE_DELAY_S)

    def serve(self) -> int:
        """Start and serve until stopped. Return the exit code."""
        try:
            return self.start_and_serve()
        except StartError as error:
            return self.write_last_lines(error.lines, error.code)
        except OSError as error:
            return self.write_last_lines(self.bind_error_log(error), 1)

    @abstractmethod
    def start_and_serve(self) -> int:
        """Start and serve until stopped. Return the exit code. Raises StartError, and OSError if the port can't be bound."""

    @abstractmethod
    def bind_error_log(self, error: OSError) -> Sequence[str]:
        """Return the last log lines if the port can't be bound."""

    @abstractmethod
    def stop_log(self) -> Sequence[str]:
        """Return the last log lines of a graceful stop."""

    @abstractmethod
    def exit_log(self) -> Sequence[str]:
        """Return the last log lines before an unrequested exit with code 0."""

    @abstractmethod
    def crash_log(self) -> Sequence[str]:
        """Return the last log lines of a crash, which exits with `crash_code`."""

    def stop(self) -> None:
        """Stop gracefully, as on SIGTERM."""
        if not self.stop_event.is_set() and self.fault() != "stubborn" and not self._is_stuck:
            self.write_last_lines(self.stop_log(), 0)
            self.stop_event.set()

    def kill(self, *, power_off: bool = False) -> None:
        """End as on SIGKILL, without last log lines. A process that is stuck in the driver ends only with its host."""
        if self._is_stuck and not power_off:
            return
        self._exit_code = SIGKILL_EXIT_CODE
        self.stop_event.set()

    def exit_silently(self) -> None:
        """Exit with code 0 although nothing requested a stop, as a real engine did at its first request."""
        if self.dead:
            return
        self.dead = True
        self.write_last_lines(self.exit_log(), 0)
        threading.Timer(0.1, self.stop_event.set).start()

    def crash_if_looping(self) -> None:
        """Raise StartError shortly after the start while the fault `crash-loop` is active."""
        if self.fault() == "crash-loop":
            self.stop_event.wait(0.3)
            raise StartError(*self.crash_log(), code=self.crash_code)

    def crash(self) -> None:
        """Exit as if after an unhandled error."""
        self._exit_code = self.write_last_lines(self.crash_log(), self.crash_code)
        self.stop_event.set()

    def bind(self, host: str, port: int) -> Server:
        """Bind the port; it refuses connections until the server is started. Raises OSError."""
        address = self._listen or (host, port)
        if self._listen and self._uses_host_network:
            address = (self._listen[0], port)
        elif self._listen and host in LOOPBACK_HOSTS:
            address = (self._listen[0], 0)  # the loopback interface of a container is not published
        self._server = Server(address[1], self._api, self, host=address[0])
        return self._server

    def take_memory(self, size_bytes: int) -> bool:
        """Claim memory from the pool. Return False if too little is available."""
        if self._pool is None or self.fault() == "oom":
            return self.fault() != "oom"
        while not self._pool.claim(self._holder, size_bytes):
            # a slow start waits until the memory of the previous run is released
            if self.fault() != "slow-start" or self.stop_event.wait(POLL_S):
                return False
        if self.fault() in GROWING_FAULTS:
            self._is_stuck = self.fault() == "unkillable"
            holder = f"other program {self._holder}" if self.fault() == OTHER_PROGRAM else self._holder
            threading.Thread(target=self._grow, args=(holder,), daemon=True).start()
        return True

    def adjust_memory(self, size_bytes: int) -> None:
        """Add to the claimed memory even if too little is available; a negative size releases some."""
        if self._pool is not None:
            self._pool.add(self._holder, size_bytes)

    def _grow(self, holder: str) -> None:
        """Increase a holder's memory until the process ends or the memory is exhausted."""
        assert self._pool is not None
        self._pool.grow(holder, OVERSHOOT_BYTES_PER_S, self.stop_event)
        self._pool.release(holder, delay_s=RELEASE_DELAY_S)

    @property
    def free_bytes(self) -> int:
        """Memory available for claims."""
        return self._pool.available_bytes if self._pool else TOTAL_BYTES

    def set_gpu_memory(self, size_bytes: int) -> None:
        """Report the GPU memory of the process."""
        if self.device == "cuda":
            self._report_gpu_memory(size_bytes)

    def wait_while_start_hangs(self) -> bool:
        """Wait while a fault prolongs the start. Return True if the process was stopped."""
        while self.fault() in ("slow-start", *GROWING_FAULTS) and not self.stop_event.wait(POLL_S):
            pass
        return self.stop_event.is_set()

    def log_access(self, line: str) -> None:
        """Write a line of the access log."""
        self.log(line)

    def serve_until_stopped(self) -> int:
        """Block until stopped. Return the exit code."""
        while not self.stop_event.wait(LEAK_POLL_S):
            if self.fault() == "leak" and self._pool is not None:
                self._pool.add(self._holder, int(LEAK_BYTES_PER_S * LEAK_POLL_S))
        return self._exit_code

    def write_log(self, lines: Iterable[tuple[float, str]]) -> None:
        """Write (delay in seconds, line) pairs, each line after its delay."""
        for wait_s, line in lines:
            if wait_s and not self._instant and self.stop_event.wait(wait_s):
                return
            self.log(line)

    def write_last_lines(self, lines: Iterable[str], code: int) -> int:
        """Write log lines without delay. Return the code."""
        for line in lines:
            self.log(line)
        return code


class PrefillStep:
    """The prefill step in progress, which computes one chunk of one prompt. It delays the tokens of other requests."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.period_s = (0.0, 0.0)  # beginning and end

    def delayed_time_s(self, due_s: float) -> float:
        """Return the time at which another request's token is sent: `due_s`, or later if the step is in progress at that time."""
        began_s, ends_s = self.period_s
        return ends_s if began_s <= due_s < ends_s else due_s
