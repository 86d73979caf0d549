"""Limits on the cost of one expression for the process that evaluates it: processor time and memory.

jinja_limits.py counts what the template itself asks for, and refuses it before it is made.

An expression reads facts and results, which a host, a log or a model filled. Whatever goes wrong, it is a failed task of a run
that continues to its rescue, never the end of the process.
"""

from __future__ import annotations

import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

#: processor seconds; a normal template of some hundred lines takes milliseconds
TIME_S = 1.0
#: growth of the process meanwhile
GROWTH_BYTES = 256 * 2**20


class OutOfBounds(Exception):
    """An expression that exceeds a limit; the message is a sentence."""


@contextmanager
def memory() -> Iterator[None]:
    """Limit the growth of the process to GROWTH_BYTES within the block: beyond it a MemoryError is raised.

    Only on a host, where the expression runs alone: the limit is the process's, and other threads must not run into it.
    """
    now = _address_space() if threading.active_count() == 1 else 0
    if not now:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = now + GROWTH_BYTES
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def timed(call: Callable[[], Any]) -> Any:
    """Return the result of CALL. Raises OutOfBounds from within it if it takes more than TIME_S of processor time.

    It is traced line by line, in its own thread: a signal would only reach the main one.
    """
    before, ends_s = sys.gettrace(), time.thread_time() + TIME_S

    def watch(frame: FrameType, what: str, value: Any) -> Any:
        if time.thread_time() > ends_s:
            raise OutOfBounds(f"takes more than {TIME_S:g} s")
        return watch

    sys.settrace(watch)
    try:
        return call()
    finally:
        sys.settrace(before)


def _address_space() -> int:
    """Return the bytes of this process's address space; 0 if the system does not report it (macOS)."""
    try:
        with open("/proc/self/statm", "rb") as file:
            pages = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * resource.getpagesize()
