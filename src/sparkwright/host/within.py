"""A deadline for work that has none of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


def within(seconds: float, work: Callable[[], T]) -> T:
    """Call a function and return its result, or raise its exception.

    Raises TimeoutError if it takes longer; its thread is then abandoned.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    wait([outcome], seconds)
    if not outcome.done():
        raise TimeoutError(f"no answer within {seconds:g} s")
    return outcome.result()
