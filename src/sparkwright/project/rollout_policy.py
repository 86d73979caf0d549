"""The batch sizes of a rolling run, and the failures that stop it."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sparkwright.errors import Refused

Size = int | str

_BATCH_SIZE_PATTERN = re.compile(r"-?[0-9]{1,9}%?")


@dataclass(frozen=True)
class RolloutPolicy:
    """The batches of a rolling run, and the failures that stop it."""

    #: number of hosts in the first batch, from `--canary`; 0 for no canary
    canary: int = 0
    #: sizes of the batches after the canary, numbers or percentages such as "25%"; empty for all hosts at once
    serial: tuple[Size, ...] = ()
    #: failures in a batch above this percentage stop the run; None to stop a rolling run at the first failure
    max_fail_percentage: float | None = None

    def size(self, n: int, total: int) -> int:
        """Return the number of hosts in batch n, counted from 0.

        total: total number of hosts in the run, including finished ones.
        """
        if self.canary and n == 0:
            return self.canary
        n -= bool(self.canary)
        return _host_count(self.serial[min(n, len(self.serial) - 1)], total) if self.serial else total

    def is_rolling(self, total: int) -> bool:
        """Return True if the run takes more than one batch."""
        return self.size(0, total) < total

    def stop_reason(
        self,
        n: int,
        failed: Sequence[str],
        batch: Sequence[str],
        *,
        is_rolling: bool,
        inconclusive: Collection[str] = (),
    ) -> str:
        """Return the reason why the run stops after batch n; empty if it continues.

        As in Ansible, the run stops if the failed percentage of the batch exceeds the limit, or the whole batch failed. Unlike in
        Ansible, it also stops if a canary failed, and without a limit a rolling run stops at the first failure.

        Args:
            inconclusive: those of the failed hosts whose result is inconclusive.
        """
        if not failed:
            return ""
        clearly_failed = [name for name in failed if name not in inconclusive]
        clauses = [f"{', '.join(clearly_failed)} failed"] if clearly_failed else []
        clauses += [f"the result of {', '.join(inconclusive)} is inconclusive"] if inconclusive else []
        outcome, limit = "; ".join(clauses), self.max_fail_percentage
        if n == 0 and self.canary and is_rolling:
            return f"canary: {outcome}" if inconclusive else f"the canary {outcome}"
        if len(failed) == len(batch) or (limit is None and is_rolling):
            return outcome
        if limit is not None and 100 * len(failed) / len(batch) > limit:
            return f"{outcome}: {len(failed)} of {len(batch)}, more than {limit:g}%"
        return ""

    def precheck_stop_reason(self, failed: Sequence[str], hosts: Sequence[str], *, is_rolling: bool) -> str:
        """Return the reason why the run stops before the first batch, after checking all hosts; empty if it continues.

        The limit is `max_fail_percentage` of all hosts.
        """
        limit = self.max_fail_percentage if self.max_fail_percentage is not None else 0 if is_rolling else 100
        if 100 * len(failed) <= limit * len(hosts):
            return ""
        return f"checks failed on {', '.join(failed)}; no host was touched"


def batch_size_error(size: object) -> str:
    """Return the error message for an invalid batch size; empty if it is valid."""
    text = "" if isinstance(size, bool) else str(size)
    if not _BATCH_SIZE_PATTERN.fullmatch(text):
        return f"invalid batch size {size!r}; use a number or a percentage, e.g. 1 or 25%."
    if not text.endswith("%"):
        return "" if int(text) >= 1 else f"a batch size must be at least 1, got {text}."
    return "" if 1 <= int(text[:-1]) <= 100 else f"a batch size must be 1% to 100% of the hosts, got {text}."


def parse_sizes(text: str) -> tuple[Size, ...]:
    """Parse the value of `--serial`: 1, 25% or 1,25%. Raises Refused for an invalid size."""
    words = [part.strip() for part in text.split(",")] if text else []
    for word in words:
        if message := batch_size_error(word):
            raise Refused(f"--serial: {message}")
    return tuple(word if word.endswith("%") else int(word) for word in words)


def _host_count(size: Size, total: int) -> int:
    if isinstance(size, str) and size.endswith("%"):
        return max(1, math.floor(total * float(size[:-1]) / 100))
    return max(1, int(size))
