"""The /metrics page of a simulated SGLang.

0.5.23 adds generated tokens when a request ends, decoded tokens at each step.
"""

from __future__ import annotations

from sparkwright.sandbox.serving.counters import Counters


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
