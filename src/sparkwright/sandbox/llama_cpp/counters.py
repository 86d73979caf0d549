"""The /metrics page of a simulated llama-server.

Observed on b11549: tokens are added when a request ends, decodes at each step.
"""

from __future__ import annotations

from sparkwright.sandbox.serving.counters import Counters


class LlamaCounters(Counters):
    """The counters of a llama-server.

    Attributes:
        decodes: steps so far.
        computed_tokens: prompt tokens that were computed.
        cached_tokens: prompt tokens that the cache held.
        seconds: time of all finished requests.
    """

    def __init__(self) -> None:
        super().__init__()
        self.decodes = 0
        self.computed_tokens = 0
        self.cached_tokens = 0
        self.seconds = 0.0

    def computed(self, tokens: int, cached: int) -> None:
        with self.mutex:
            self.computed_tokens += tokens - cached
            self.cached_tokens += cached
            self.decodes += 1

    def token(self, count: int, after_s: float) -> None:
        with self.mutex:
            self.decodes += 1

    def ended(self, reason: str, tokens: int, seconds: float) -> None:
        super().ended(reason, tokens, seconds)
        with self.mutex:
            self.generated += tokens
            self.seconds += seconds

    def text(self) -> bytes:
        """Return the /metrics page."""
        with self.mutex:
            rows = (
                ("prompt_tokens_total", "counter", self.computed_tokens),
                ("prompt_tokens_cached_total", "counter", self.cached_tokens),
                ("tokens_predicted_total", "counter", self.generated),
                ("tokens_predicted_seconds_total", "counter", round(self.seconds, 3)),
                ("n_decode_total", "counter", self.decodes),
                ("requests_processing", "gauge", self.running),
                ("requests_deferred", "gauge", self.waiting),
            )
        lines = (f"# TYPE llamacpp:{name} {kind}\nllamacpp:{name} {value}\n" for name, kind, value in rows)
        return "".join(lines).encode()
