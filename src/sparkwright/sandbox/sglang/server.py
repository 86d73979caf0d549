"""One run of the simulated SGLang, from its arguments to its exit code.

As process 1 of its container it can't kill itself: when its scheduler raises, SGLang 0.5.23 exits with code 0.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Literal

from sparkwright.sandbox.serving.process import HOST_SIDE, Counters, Process
from sparkwright.sandbox.sglang import start_log
from sparkwright.sandbox.sglang.config import Config, Refused, arguments_parsed, config, refuse_adapters

# The /metrics page of a simulated SGLang.
#
# 0.5.23 adds generated tokens when a request ends, decoded tokens at each step.


class SglangCounters(Counters):
    """The counters of an SGLang server.

    Args:
        model: name of the model.
        room: tokens that its KV cache holds.

    Attributes:
        decoded: tokens decoded so far.
        prefilled: prompt tokens computed so far.
        cached: prompt tokens found in the cache so far.
    """

    def __init__(self, model: str, room: int) -> None:
        super().__init__()
        self.decoded = 0
        self.prefilled = 0
        self.cached = 0
        self.ended_prompts = 0
        self._model = model
        self._room = max(1, room)

    def computed(self, tokens: int, cached: int) -> None:
        super().computed(tokens, cached)
        with self.mutex:
            self.prefilled += tokens - cached
            self.cached += cached

    def token(self, count: int, after_s: float) -> None:
        with self.mutex:
            self.decoded += count > 1  # the first token is part of the prefill

    def ended(self, reason: str, tokens: int, seconds: float) -> None:
        super().ended(reason, tokens, seconds)
        with self.mutex:
            self.generated += tokens
            self.ended_prompts += 1

    @property
    def usage(self) -> float:
        """The share of the KV cache that is in use."""
        return round(min(1.0, self.held_tokens / self._room), 4)

    def text(self) -> bytes:
        """Return the /metrics page."""
        with self.mutex:
            rows: tuple[tuple[str, str, str, float], ...] = (
                ("num_running_reqs", "gauge", "", self.running),
                ("num_queue_reqs", "gauge", "", self.waiting),
                ("token_usage", "gauge", "", self.usage),
                ("max_total_num_tokens", "gauge", "", self._room),
                ("prompt_tokens_total", "counter", 'is_streaming="true"', self.prompt),
                ("generation_tokens_total", "counter", 'is_streaming="true"', self.generated),
                ("cached_tokens_total", "counter", 'cache_source="device"', self.cached),
                ("realtime_tokens_total", "counter", 'mode="prefill_compute"', self.prefilled),
                ("realtime_tokens_total", "counter", 'mode="prefill_cache"', self.cached),
                ("realtime_tokens_total", "counter", 'mode="decode"', self.decoded),
                ("num_requests_total", "counter", 'is_streaming="true"', self.ended_prompts),
            )
        return "".join(self._row(*row) for row in rows).encode()

    def _row(self, name: str, kind: str, label: str, value: float) -> str:
        labels = ",".join(filter(None, (label, f'model_name="{self._model}"')))
        return f"# TYPE sglang:{name} {kind}\nsglang:{name}{{{labels}}} {float(value)}\n"


#: seconds that /health waits for a token; and in an instant sandbox
HEALTH_S, SOON_S = 20.0, 0.3
#: interval at which /health checks for its token, seconds
PROBE_S = 1.0


class SglangServer(Process):
    """A simulated SGLang server.

    `argv` is the command line after `sglang serve`.
    """

    usual_holder = "sglang"
    crash_code = 0

    config: Config
    counters: SglangCounters
    #: /health answers 503 unless this is up; unhealthy: no token came in time
    status: Literal["starting", "up", "unhealthy"] = "starting"

    @property
    def health_s(self) -> float:
        """Seconds that /health waits for a token."""
        return SOON_S if self._instant else HEALTH_S

    @property
    def probe_s(self) -> float:
        """Seconds between two checks for that token."""
        return 0.0 if self._instant else PROBE_S

    def serve(self) -> int:
        try:
            return self._started()
        except Refused as refused:
            return self.last_words(refused.lines, refused.code)
        except OSError as error:
            at = f"('{self.config.asked['host']}', {self.config.asked['port']})"
            taken = f"error while attempting to bind on address {at}: [errno {error.errno}] address already in use"
            return self.last_words([f"ERROR:    [Errno {error.errno}] {taken}"], 1)

    def stopping(self) -> Sequence[str]:
        left = start_log.GRACEFUL.format(self.counters.running if self.status != "starting" else 0)
        return [start_log.stamped(start_log.SIGTERM), start_log.stamped(left)]

    def dying(self) -> Sequence[str]:
        return start_log.scheduler_died(start_log.NO_KERNEL, start_log.SIGQUIT)

    def crashing(self) -> Sequence[str]:
        return start_log.scheduler_died(start_log.NO_KERNEL, start_log.LAUNCH_SIGQUIT)

    def log_access(self, line: str) -> None:
        self.log(start_log.stamped(line))

    def _started(self) -> int:
        self.status = "starting"
        arguments = arguments_parsed(self._argv)
        made = self.config = self.limits = config(arguments, self._folder_of(str(arguments["model_path"])))
        self.say(start_log.arguments(made))
        server = self.bind(made.asked["host"], made.asked["port"])
        free = self.free_bytes
        self.say(start_log.loading(made, free))
        refuse_adapters(made, self._folder_of)
        if self.fault() == "crash-loop":
            self.stopped.wait(0.3)
            return self.last_words(self.crashing(), self.crash_code)
        if not made.kv_tokens or not self.take_memory(made.static_bytes):
            return self.last_words(start_log.no_memory(made), self.crash_code)
        self.take_more(HOST_SIDE + start_log.GRAPHS_BYTES)
        self.hold_gpu(made.static_bytes)
        self.say(start_log.caching(made, free - made.static_bytes, self.device))
        if self.held_back():
            return self._code
        self.cache = RadixCache(on=not made.asked["disable_radix_cache"])
        self.counters = SglangCounters(made.name, made.kv_tokens)
        server.start()
        self.say(start_log.serving(made))
        self.status = "up"
        self.log(start_log.stamped(start_log.READY))
        return self.until_stopped()


PROMPTS = 256


class RadixCache:
    """A radix cache of the last prompts.

    Args:
        on: False disables it.
    """

    def __init__(self, *, on: bool) -> None:
        self._on = on
        self._seen: deque[tuple[int, ...]] = deque(maxlen=PROMPTS)
        self._mutex = threading.Lock()

    def take(self, prompt: Sequence[int]) -> int:
        """Return the number of leading tokens that are cached. At least one token is always computed again."""
        if not self._on:
            return 0
        with self._mutex:
            found = max((_shared(prompt, pair) for pair in self._seen), default=0)
            self._seen.append(tuple(prompt))
        return max(0, min(found, len(prompt) - 1))


def _shared(prompt: Sequence[int], other: Sequence[int]) -> int:
    differ = (n for n, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b)
    return next(differ, min(len(prompt), len(other)))
