"""Waiting for another process."""

import time
from collections.abc import Callable
from typing import Any

TIMEOUT_S = 60.0


def wait_until(condition: Callable[[], Any], what: str = "the condition", timeout_s: float = TIMEOUT_S) -> Any:
    """Wait until the condition returns a true value, and return it. Fails after the timeout."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"{what} did not come within {timeout_s:g} s"
        time.sleep(0.02)
    return value
