"""The radix cache of a simulated SGLang: all tokens up to the first difference are cached."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

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
