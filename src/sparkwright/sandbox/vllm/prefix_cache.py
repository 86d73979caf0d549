"""The prefix cache: whole blocks, each keyed by its tokens and everything before them.

A dense model keeps every full block. A recurrent model keeps its state only where a scheduler step ended at the end of a block,
so a shared prefix hits only up to such a point.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from sparkwright.sandbox.vllm.config import Config


class PrefixCache:
    """The prefix cache of an engine. It counts in tokens, as the engine's metrics do."""

    def __init__(self, config: Config) -> None:
        self._block = config.block_tokens
        aligned = max(1, config.budget // self._block) * self._block
        self._step = aligned if config.mamba_cache_mode == "align" else self._block
        self._room = config.cache_blocks
        self._on = config.prefix_caching
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._mutex = threading.Lock()
        self.queries = 0
        self.hits = 0

    def take(self, prompt: Sequence[int]) -> int:
        """Return the number of a prompt's leading tokens that are cached, then cache the prompt."""
        if not self._on:
            return 0
        with self._mutex:
            hit = max((end for end, key in self._ends(prompt) if key in self._kept and end < len(prompt)), default=0)
            for end, key in self._ends(prompt):
                if self._keeps(end, len(prompt)):
                    self._kept[key] = None
                    self._kept.move_to_end(key)
            while len(self._kept) > self._room:
                self._kept.popitem(last=False)
            self.queries += len(prompt)
            self.hits += hit
        return hit

    def _keeps(self, end: int, length: int) -> bool:
        return end % self._step == 0 or end + self._block > length

    def _ends(self, prompt: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the end of each full block, with a key of everything before it."""
        key = 0
        for start in range(0, len(prompt) - self._block + 1, self._block):
            key = hash((key, tuple(prompt[start : start + self._block])))
            yield start + self._block, key
