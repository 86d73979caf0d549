"""The prefix cache of a simulated vLLM, and its /metrics page with the metric names and labels of vLLM 0.32.0."""

from __future__ import annotations

import bisect
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from sparkwright.sandbox.serving.process import Counters
from sparkwright.sandbox.vllm.command_line import Release, parse_release
from sparkwright.sandbox.vllm.config import FIRST_RELEASE_WITH_ALIGN_MODE, Config
from sparkwright.sandbox.vllm.model import Drafts

POSITION_METRIC = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
#: from the first of these versions until the second, the metrics show a hybrid model's initial block_size, not the actual one
STALE_BLOCK_SIZE_SINCE: Release = (0, 18, 0)
ACTUAL_BLOCK_SIZE_SINCE: Release = (0, 23, 0)
FIRST_TOKEN_BOUNDS_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
    2560.0,
)  # fmt: skip
INTER_TOKEN_BOUNDS_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
REQUEST_BOUNDS_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip


class PrefixCache:
    """The prefix cache of an engine. `queries` and `hits` are numbers of tokens, as in the engine's metrics."""

    def __init__(self, config: Config) -> None:
        self._block_tokens = config.block_tokens
        aligned_tokens = max(1, config.budget // self._block_tokens) * self._block_tokens
        self._cache_interval = aligned_tokens if config.mamba_cache_mode == "align" else self._block_tokens
        self._max_blocks = config.cache_blocks
        self._is_enabled = config.prefix_caching
        self._cached_keys: OrderedDict[int, None] = OrderedDict()
        self._mutex = threading.Lock()
        self.queries = 0
        self.hits = 0

    def cache_prompt(self, prompt: Sequence[int]) -> int:
        """Cache a prompt. Return the number of its leading tokens that were already cached."""
        if not self._is_enabled:
            return 0
        with self._mutex:
            hit_tokens = max(
                (end for end, key in self._block_ends(prompt) if key in self._cached_keys and end < len(prompt)),
                default=0,
            )
            # the last block is cached, and each block that ends at a multiple of the interval
            for end, key in self._block_ends(prompt):
                is_last = end + self._block_tokens > len(prompt)
                if is_last or end % self._cache_interval == 0:
                    self._cached_keys[key] = None
                    self._cached_keys.move_to_end(key)
            while len(self._cached_keys) > self._max_blocks:
                self._cached_keys.popitem(last=False)
            self.queries += len(prompt)
            self.hits += hit_tokens
        return hit_tokens

    def _block_ends(self, prompt: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the end of each full block, and a hash of all tokens before it."""
        key = 0
        for start in range(0, len(prompt) - self._block_tokens + 1, self._block_tokens):
            key = hash((key, tuple(prompt[start : start + self._block_tokens])))
            yield start + self._block_tokens, key


@dataclass
class Histogram:
    """A Prometheus histogram."""

    name: str
    description: str
    #: upper bounds of the buckets
    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def add(self, value: float) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def rows(self, labels: dict[str, str]) -> Iterator[str]:
        """Yield the lines of the /metrics page for the histogram."""
        counts, cumulative_count = self.counts or [0] * (len(self.bounds) + 1), 0
        yield from _header_lines(self.name, "histogram", self.description)
        for bound, count in zip((*map(str, map(float, self.bounds)), "+Inf"), counts, strict=True):
            cumulative_count += count
            yield f"{self.name}_bucket{_format_labels({**labels, 'le': bound})} {float(cumulative_count)}"
        yield f"{self.name}_count{_format_labels(labels)} {float(cumulative_count)}"
        yield f"{self.name}_sum{_format_labels(labels)} {self.sum}"


class Metrics(Counters):
    """The engine's counters and histograms."""

    def __init__(
        self,
        config: Config,
        version: str,
        cache: PrefixCache,
        drafts: Drafts | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__()
        self._drafts, self._log = drafts, log
        self.first_token = Histogram(
            "vllm:time_to_first_token_seconds", "Time from arrival to the first token.", FIRST_TOKEN_BOUNDS_S
        )
        self.inter_token = Histogram(
            "vllm:inter_token_latency_seconds", "Time between two tokens.", INTER_TOKEN_BOUNDS_S
        )
        self.end_to_end = Histogram(
            "vllm:e2e_request_latency_seconds", "Time from arrival to the last token.", REQUEST_BOUNDS_S
        )
        self._config = config
        self._cache = cache
        self._info = _cache_info(config, version)

    @property
    def step_rate_factor(self) -> float:
        return self._drafts.step_rate_factor if self._drafts else 1.0

    def begin_step(self) -> int:
        with self.mutex:
            return self._drafts.begin_step() if self._drafts else 1

    def count_token(self, count: int, latency_s: float) -> None:
        super().count_token(count, latency_s)
        with self.mutex:
            (self.first_token if count == 1 else self.inter_token).add(latency_s)

    def count_request(self, finish_reason: str, token_count: int, duration_s: float) -> None:
        super().count_request(finish_reason, token_count, duration_s)
        if finish_reason != "abort":
            with self.mutex:
                self.end_to_end.add(duration_s)
        with self.mutex:
            line = self._drafts.log_line(time.monotonic()) if self._drafts else ""
        if line:
            self._log(line)

    def build_metrics_page(self) -> bytes:
        with self.mutex:
            return ("\n".join(self._rows()) + "\n").encode()

    def _rows(self) -> Iterator[str]:
        labels = {"engine": "0", "model_name": self._config.served_names[0]}
        cache, usage = self._cache, min(1.0, self.held_tokens / self._config.cache_tokens)
        for name, kind, description, value in (
            ("vllm:num_requests_running", "gauge", "Running requests.", self.running),
            ("vllm:num_requests_waiting", "gauge", "Waiting requests.", self.waiting),
            ("vllm:kv_cache_usage_perc", "gauge", "Share of the KV cache in use.", usage),
            ("vllm:prefix_cache_queries_total", "counter", "Tokens looked up in the prefix cache.", cache.queries),
            ("vllm:prefix_cache_hits_total", "counter", "Tokens found in the prefix cache.", cache.hits),
            ("vllm:num_preemptions_total", "counter", "Preemptions.", 0),
            ("vllm:prompt_tokens_total", "counter", "Prompt tokens.", self.prompt_tokens),
            ("vllm:prompt_tokens_cached_total", "counter", "Cached prompt tokens.", cache.hits),
            ("vllm:generation_tokens_total", "counter", "Generated tokens.", self.generated_tokens),
        ):
            yield from _header_lines(name, kind, description)
            yield f"{name}{_format_labels(labels)} {float(value)}"
        yield from _header_lines("vllm:request_success_total", "counter", "Finished requests by reason.")
        for reason, count in self.finished_by_reason.items():
            yield f"vllm:request_success_total{_format_labels({**labels, 'finished_reason': reason})} {float(count)}"
        yield from self._speculation_rows(labels)
        for histogram in (self.first_token, self.inter_token, self.end_to_end):
            yield from histogram.rows(labels)
        yield from _header_lines("vllm:cache_config_info", "gauge", "The cache's settings.")
        yield f"vllm:cache_config_info{_format_labels(self._info)} 1.0"

    def _speculation_rows(self, labels: dict[str, str]) -> Iterator[str]:
        """Yield the lines for the counters of speculative decoding; none if it is not used."""
        if self._drafts is None:
            return
        for name, (description, value) in self._drafts.counters().items():
            yield from _header_lines(name, "counter", description)
            yield f"{name}{_format_labels(labels)} {float(value)}"
        yield from _header_lines(POSITION_METRIC, "counter", "Accepted tokens per draft position.")
        for position, value in enumerate(self._drafts.positions):
            yield f"{POSITION_METRIC}{_format_labels({**labels, 'position': str(position)})} {float(value)}"


def _cache_info(config: Config, version: str) -> dict[str, str]:
    release = parse_release(version)
    is_stale = config.hybrid and STALE_BLOCK_SIZE_SINCE <= release < ACTUAL_BLOCK_SIZE_SINCE
    info = {
        "engine": "0",
        "block_size": 16 if is_stale else config.block_tokens,
        "cache_dtype": config.kv_cache_dtype,
        "effective_attention_block_size": config.block_tokens,
        "enable_prefix_caching": config.prefix_caching,
        "gpu_memory_utilization": config.utilization,
        "is_attention_free": False,
        "kv_cache_max_concurrency": config.cache_tokens / config.max_model_len,
        "kv_cache_size_tokens": config.cache_tokens,
        "mamba_block_size": 16,
        "mamba_cache_dtype": "auto",
        "mamba_page_size_padded": None,
        "mamba_ssm_cache_dtype": "auto",
        "num_gpu_blocks": config.cache_blocks,
        "prefix_caching_hash_algo": "sha256",
        **({"mamba_cache_mode": config.mamba_cache_mode} if release >= FIRST_RELEASE_WITH_ALIGN_MODE else {}),
    }
    return {name: str(value) for name, value in info.items()}


def _header_lines(name: str, kind: str, description: str) -> Iterator[str]:
    yield f"# HELP {name} {description}"
    yield f"# TYPE {name} {kind}"


def _format_labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value}"' for name, value in sorted(labels.items())) + "}"
