"""How a play goes over its hosts: the sizes of the batches, and how many failures stop it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.errors import Refused

Size = int | str

_NUMBER = re.compile(r"-?[0-9]{1,9}%?")


@dataclass(frozen=True)
class RolloutPolicy:
    """canary: how many go first, alone; 0: nobody. serial: sizes of the batches after them, numbers or "25%"; empty: all at once.

    max_fail_percentage: stop when more than this share of a batch failed; None: the first failure stops, as long as there is more
    than one batch.
    """

    canary: int = 0
    serial: tuple[Size, ...] = ()
    max_fail_percentage: float | None = None

    def size(self, n: int, everyone: int) -> int:
        """How many the n-th batch holds (from 0). everyone: how many hosts the run is for, those done long ago among them."""
        if self.canary and n == 0:
            return self.canary
        n -= bool(self.canary)
        return _hosts(self.serial[min(n, len(self.serial) - 1)], everyone) if self.serial else everyone

    def rolls(self, everyone: int) -> bool:
        """Whether it takes more than one batch."""
        return self.size(0, everyone) < everyone

    def stops(self, n: int, failed: Sequence[str], batch: Sequence[str], *, rolls: bool) -> str:
        """Why nothing more is begun after the n-th batch; empty when it goes on.

        As Ansible: the percentage is of the batch and must be exceeded, and a batch that failed whole stops. Stricter than
        Ansible: a canary must not fail at all, and without a percentage one failure stops a run that rolls.
        """
        if not failed:
            return ""
        names, limit = ", ".join(failed), self.max_fail_percentage
        if n == 0 and self.canary and rolls:
            return f"the canary {names} failed"
        if len(failed) == len(batch) or (limit is None and rolls):
            return f"{names} failed"
        if limit is not None and 100 * len(failed) / len(batch) > limit:
            return f"{names} failed: {len(failed)} of {len(batch)}, more than {limit:g}%"
        return ""

    def stops_before(self, failed: Sequence[str], everyone: Sequence[str], *, rolls: bool) -> str:
        """Why nothing is begun when the check of all hosts found some that can't be done: the same limit, of all of them."""
        limit = self.max_fail_percentage if self.max_fail_percentage is not None else 0 if rolls else 100
        if 100 * len(failed) <= limit * len(everyone):
            return ""
        return f"checks failed on {', '.join(failed)}; no host was touched"


def why_no_size(size: object) -> str:
    """Why something is no batch size; empty when it is one."""
    text = "" if isinstance(size, bool) else str(size)
    if not _NUMBER.fullmatch(text):
        return f"invalid batch size {size!r}; use a number or a percentage, e.g. 1 or 25%."
    if not text.endswith("%"):
        return "" if int(text) >= 1 else f"a batch size must be at least 1, got {text}."
    return "" if 1 <= int(text[:-1]) <= 100 else f"a batch size must be 1% to 100% of the hosts, got {text}."


def sizes(text: str) -> tuple[Size, ...]:
    """`--serial` as it is typed: 1, 25% or 1,25%. Raises Refused for what is no size."""
    words = [part.strip() for part in text.split(",")] if text else []
    for word in words:
        if why := why_no_size(word):
            raise Refused(f"--serial: {why}")
    return tuple(word if word.endswith("%") else int(word) for word in words)


def _hosts(size: Size, everyone: int) -> int:
    if isinstance(size, str) and size.endswith("%"):
        return max(1, math.floor(everyone * float(size[:-1]) / 100))
    return max(1, int(size))
