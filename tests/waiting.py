"""Waiting for what another process does."""

import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 60.0


def wait_until(condition: Callable[[], Any], what: str = "it", timeout_s: float = TIMEOUT_S) -> Any:
    """Wait until the condition returns a true value, and return this. Fails when the time is over."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"{what} did not come within {timeout_s:g} s"
        time.sleep(0.02)
    return value
