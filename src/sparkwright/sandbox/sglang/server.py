"""One run of the simulated SGLang, from its arguments to its exit code.

As process 1 of its container it can't kill itself: when its scheduler raises, SGLang 0.5.23 exits with code 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sparkwright.sandbox.serving.process import HOST_SIDE, Process
from sparkwright.sandbox.sglang import start_log
from sparkwright.sandbox.sglang.arguments import Refused, parsed
from sparkwright.sandbox.sglang.config import Config, config, refuse_adapters
from sparkwright.sandbox.sglang.counters import SglangCounters
from sparkwright.sandbox.sglang.radix import RadixCache

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

    def _started(self) -> int:
        self.status = "starting"
        arguments = parsed(self._argv)
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
