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
        """Count the prompt of a request.

        Args:
            tokens: of the prompt.
            cached: how many of them the cache held.
        """
        del cached
        with self.mutex:
            self.prompt += tokens

    @property
    def gain(self) -> float:
        """The rate of its steps, as a share of the usual one."""
        return 1.0

    def step(self) -> int:
        """Begin a step of one request. Return the number of tokens that it generates."""
        return 1

    def token(self, count: int, after_s: float) -> None:
        """Count a token of a request.

        Args:
            count: tokens of this request so far.
            after_s: seconds since its arrival or the previous token.
        """
        del count, after_s
        with self.mutex:
            self.generated += 1

    def ended(self, reason: str, tokens: int, seconds: float) -> None:
        """Count the end of a request.

        Args:
            reason: finish reason.
            tokens: that it generated.
            seconds: since its arrival.
        """
        del tokens, seconds
        with self.mutex:
            self.finished[reason] += 1
