"""Waiting for what another process does: until it holds, at most so long."""

import time
from collections.abc import Callable
from typing import Any

LATE_S = 60.0


def until(holds: Callable[[], Any], what: str = "it", timeout_s: float = LATE_S) -> Any:
    """Return the first true answer. Fails when none came in time."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"{what} did not come within {timeout_s:g} s"
        time.sleep(0.02)
    return found
