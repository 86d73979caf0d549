"""The counters of a simulated server; each engine exports them under its own names."""

from __future__ import annotations

import threading

REASONS = ("stop", "length", "abort", "error", "repetition")


class Counters:
    """The counters that every engine has.

    Attributes:
        mutex: held while a counter is changed.
        held_tokens: tokens of running requests.
    """

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        self.running = 0
        self.waiting = 0
        self.held_tokens = 0
        self.prompt = 0
        self.generated = 0
        self.finished = dict.fromkeys(REASONS, 0)

    def computed(self, tokens: int, cached: int) -> None:
        """A prompt of so many tokens, of which the cache held some."""
        del cached
        with self.mutex:
            self.prompt += tokens

    @property
    def gain(self) -> float:
        """The pace of its steps, as a share of the usual one."""
        return 1.0

    def step(self) -> int:
        """Begin a step of one request. Returns how many tokens it gives."""
        return 1

    def token(self, count: int, after_s: float) -> None:
        """A request's token. count: of this request so far. after_s: seconds since its arrival or the token before."""
        del count, after_s
        with self.mutex:
            self.generated += 1

    def ended(self, reason: str, tokens: int, seconds: float) -> None:
        """A request's end. tokens: it got. seconds: since its arrival."""
        del tokens, seconds
        with self.mutex:
            self.finished[reason] += 1
