"""One run of the simulated SGLang, from its arguments to its exit code.

After an exception in its scheduler, SGLang 0.5.23 exits with code 0: as process 1 of its container it can't kill itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sparkwright.sandbox.serving.api import metrics_page
from sparkwright.sandbox.serving.generation import PromptCache
from sparkwright.sandbox.serving.process import HOST_MEMORY_BYTES, Counters, Process
from sparkwright.sandbox.sglang import start_log
from sparkwright.sandbox.sglang.config import Config, build_config, check_adapters, parse_arguments

#: time limit of /health, which waits for a generated token; shorter in an instant sandbox
HEALTH_TIMEOUT_S, INSTANT_HEALTH_TIMEOUT_S = 20.0, 0.3
#: delay after which /health checks for its token
TOKEN_DELAY_S = 1.0
#: number of prompts in the radix cache
MAX_CACHED_PROMPTS = 256


class SglangCounters(Counters):
    """The counters of an SGLang server. 0.5.23 counts generated tokens at the end of a request, but decoded tokens one by one."""

    counts_at_end = True

    def __init__(self, model: str, cache_tokens: int) -> None:
        super().__init__()
        self._model = model
        self._cache_tokens = max(1, cache_tokens)

    @property
    def usage(self) -> float:
        """Used share of the KV cache, 0 to 1."""
        return round(min(1.0, self.held_tokens / self._cache_tokens), 4)

    def build_metrics_page(self) -> bytes:
        streaming_label = 'is_streaming="true"'
        with self.mutex:
            rows: tuple[tuple[str, str, str, float], ...] = (
                ("num_running_reqs", "gauge", "", self.running),
                ("num_queue_reqs", "gauge", "", self.waiting),
                ("token_usage", "gauge", "", self.usage),
                ("max_total_num_tokens", "gauge", "", self._cache_tokens),
                ("prompt_tokens_total", "counter", streaming_label, self.prompt_tokens),
                ("generation_tokens_total", "counter", streaming_label, self.generated_tokens),
                ("cached_tokens_total", "counter", 'cache_source="device"', self.cached_tokens),
                ("realtime_tokens_total", "counter", 'mode="prefill_compute"', self.computed_tokens),
                ("realtime_tokens_total", "counter", 'mode="prefill_cache"', self.cached_tokens),
                ("realtime_tokens_total", "counter", 'mode="decode"', self.decoded_tokens),
                ("num_requests_total", "counter", streaming_label, sum(self.finished_by_reason.values())),
            )
        model_label = f'model_name="{self._model}"'
        return metrics_page(
            "sglang",
            (
                (name, kind, f"{label},{model_label}" if label else model_label, float(value))
                for name, kind, label, value in rows
            ),
        )


class SglangServer(Process):
    """A simulated SGLang server.

    `argv` is the command line after `sglang serve`.
    """

    default_holder = "sglang"
    crash_code = 0

    config: Config
    counters: SglangCounters
    #: /ready returns 503 unless this is `up`; `unhealthy` after a timeout of /health
    status: Literal["starting", "up", "unhealthy"] = "starting"

    @property
    def health_timeout_s(self) -> float:
        """Time limit of /health, seconds."""
        return INSTANT_HEALTH_TIMEOUT_S if self._instant else HEALTH_TIMEOUT_S

    @property
    def token_delay_s(self) -> float:
        """Delay after which /health checks for its token, seconds."""
        return 0.0 if self._instant else TOKEN_DELAY_S

    def bind_error_log(self, error: OSError) -> Sequence[str]:
        address = f"('{self.config.arguments['host']}', {self.config.arguments['port']})"
        reason = f"error while attempting to bind on address {address}: [errno {error.errno}] address already in use"
        return [f"ERROR:    [Errno {error.errno}] {reason}"]

    def stop_log(self) -> Sequence[str]:
        exit_line = start_log.GRACEFUL_EXIT_LINE.format(self.counters.running if self.status != "starting" else 0)
        return [start_log.stamp_line(start_log.SIGTERM_LINE), start_log.stamp_line(exit_line)]

    def exit_log(self) -> Sequence[str]:
        return start_log.scheduler_death_lines(start_log.NO_KERNEL_ERROR, start_log.SIGQUIT_LINE)

    def crash_log(self) -> Sequence[str]:
        return start_log.scheduler_death_lines(start_log.NO_KERNEL_ERROR, start_log.LAUNCH_SIGQUIT_LINE)

    def log_access(self, line: str) -> None:
        self.log(start_log.stamp_line(line))

    def start_and_serve(self) -> int:
        self.status = "starting"
        arguments = parse_arguments(self.argv)
        config = self.config = self.limits = build_config(arguments, self._host_path(str(arguments["model_path"])))
        self.write_log(start_log.argument_lines(config))
        server = self.bind(config.arguments["host"], config.arguments["port"])
        free_bytes = self.free_bytes
        self.write_log(start_log.loading_lines(config, free_bytes))
        check_adapters(config, self._host_path)
        self.crash_if_looping()
        if not config.kv_tokens or not self.take_memory(config.static_bytes):
            return self.write_last_lines(start_log.no_memory_lines(config), self.crash_code)
        self.adjust_memory(HOST_MEMORY_BYTES + start_log.GRAPH_BYTES)
        self.set_gpu_memory(config.static_bytes)
        self.write_log(start_log.cache_lines(config, free_bytes - config.static_bytes, self.device))
        if self.wait_while_start_hangs():
            return self._exit_code
        self.cache = PromptCache(0 if config.arguments["disable_radix_cache"] else MAX_CACHED_PROMPTS)
        self.counters = SglangCounters(config.name, config.kv_tokens)
        server.start()
        self.write_log(start_log.serving_lines(config))
        self.status = "up"
        self.log(start_log.stamp_line(start_log.READY_LINE))
        return self.serve_until_stopped()
