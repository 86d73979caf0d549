"""The order of a play over its hosts: the sizes of the batches, and how many failures stop it."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from sparkwright.errors import Refused

Size = int | str

_BATCH_SIZE = re.compile(r"-?[0-9]{1,9}%?")


@dataclass(frozen=True)
class RolloutPolicy:
    """The batches of a rolling run, and the failures that stop it."""

    #: number of hosts that go first, alone, as set by `--canary`; even at 0 a play has a canary with `serial: [1, ...]`
    canary: int = 0
    #: sizes of the batches after the canary, numbers or "25%"; empty: all hosts at once
    serial: tuple[Size, ...] = ()
    #: stop when more than this share of a batch failed; None: stop at the first failure if there is more than one batch
    max_fail_percentage: float | None = None

    def size(self, n: int, everyone: int) -> int:
        """Return the number of hosts in the n-th batch, from 0.

        everyone: number of hosts that the run is for, with those that are finished already.
        """
        if self.canary and n == 0:
            return self.canary
        n -= bool(self.canary)
        return _host_count(self.serial[min(n, len(self.serial) - 1)], everyone) if self.serial else everyone

    def is_rolling(self, everyone: int) -> bool:
        """Return True if the run takes more than one batch."""
        return self.size(0, everyone) < everyone

    def stop_reason(self, n: int, failed: Sequence[str], batch: Sequence[str], *, is_rolling: bool) -> str:
        """Return why the run stops after the n-th batch; empty if it goes on.

        As in Ansible, the percentage is of the batch and must be exceeded, and a batch that failed whole stops. Stricter than
        Ansible: a canary must not fail at all, and without a percentage one failure stops a run that rolls.
        """
        if not failed:
            return ""
        names, limit = ", ".join(failed), self.max_fail_percentage
        if n == 0 and self.canary and is_rolling:
            return f"the canary {names} failed"
        if len(failed) == len(batch) or (limit is None and is_rolling):
            return f"{names} failed"
        if limit is not None and 100 * len(failed) / len(batch) > limit:
            return f"{names} failed: {len(failed)} of {len(batch)}, more than {limit:g}%"
        return ""

    def precheck_stop_reason(self, failed: Sequence[str], everyone: Sequence[str], *, is_rolling: bool) -> str:
        """Return why the run stops before the first batch, after the check of all hosts; empty if it goes on.

        The limit is the same, of all hosts.
        """
        limit = self.max_fail_percentage if self.max_fail_percentage is not None else 0 if is_rolling else 100
        if 100 * len(failed) <= limit * len(everyone):
            return ""
        return f"checks failed on {', '.join(failed)}; no host was touched"


def check_batch_size(size: object) -> str:
    """Return why something is not a batch size; empty if it is one."""
    text = "" if isinstance(size, bool) else str(size)
    if not _BATCH_SIZE.fullmatch(text):
        return f"invalid batch size {size!r}; use a number or a percentage, e.g. 1 or 25%."
    if not text.endswith("%"):
        return "" if int(text) >= 1 else f"a batch size must be at least 1, got {text}."
    return "" if 1 <= int(text[:-1]) <= 100 else f"a batch size must be 1% to 100% of the hosts, got {text}."


def parse_sizes(text: str) -> tuple[Size, ...]:
    """Parse `--serial` as it is typed: 1, 25% or 1,25%. Raises Refused for an invalid size."""
    words = [part.strip() for part in text.split(",")] if text else []
    for word in words:
        if why := check_batch_size(word):
            raise Refused(f"--serial: {why}")
    return tuple(word if word.endswith("%") else int(word) for word in words)


def _host_count(size: Size, everyone: int) -> int:
    if isinstance(size, str) and size.endswith("%"):
        return max(1, math.floor(everyone * float(size[:-1]) / 100))
    return max(1, int(size))
