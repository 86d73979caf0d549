"""Running a program, with limits on its output and its time."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import TypeVar

#: limit of both streams together; the longest output is the kernel's log with 1 MB
MOST_BYTES = 16 * 2**20
PIECE_BYTES = 1 << 16


class TookTooLong(Exception):
    """The program exceeded its time limit, and was killed."""


class TooMuchOutput(Exception):
    """The program printed more than allowed, and was killed."""


def run(
    argv: Sequence[str],
    *,
    stdin: bytes,
    timeout_s: float,
    env: Mapping[str, str],
    most_bytes: int = MOST_BYTES,
    limits: Callable[[], None] | None = None,
) -> tuple[int, bytes, bytes]:
    """Run a program and return its exit code, output and errors.

    Args:
        argv: the program and its arguments.
        stdin: its input.
        timeout_s: how long it may run.
        env: its environment.
        most_bytes: limit of output and errors together.
        limits: called in the child before the program starts; it then leads a process group, which is killed as a whole.

    Raises:
        OSError: the program does not start.
        TooMuchOutput: it printed more than most_bytes, and was killed.
        TookTooLong: it exceeded timeout_s, and was killed.
    """
    pipe = subprocess.PIPE
    group = limits is not None
    with subprocess.Popen(
        list(argv), stdin=pipe, stdout=pipe, stderr=pipe, env=dict(env), preexec_fn=limits, start_new_session=group
    ) as process:
        try:
            out, err = _exchange(process, stdin, time.monotonic() + timeout_s, most_bytes)
        except TimeoutError:
            _kill(process, group=group)
            raise TookTooLong from None
        except BaseException:
            _kill(process, group=group)
            raise
        return process.returncode, out, err


def _kill(process: subprocess.Popen[bytes], *, group: bool) -> None:
    if group and process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _exchange(process: subprocess.Popen[bytes], stdin: bytes, until_s: float, most_bytes: int) -> tuple[bytes, bytes]:
    assert process.stdin and process.stdout and process.stderr
    kept = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    feed, left = process.stdin.fileno(), memoryview(stdin)
    os.set_blocking(feed, False)
    with selectors.DefaultSelector() as selector:
        for number in kept:
            selector.register(number, selectors.EVENT_READ)
        selector.register(feed, selectors.EVENT_WRITE)
        while selector.get_map():
            ready = selector.select(max(0.0, until_s - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if key.fd == feed:
                    left = _fed(feed, left)
                    if not left:
                        selector.unregister(feed)
                        process.stdin.close()
                elif piece := os.read(key.fd, PIECE_BYTES):
                    kept[key.fd] += piece
                else:
                    selector.unregister(key.fd)
            if sum(map(len, kept.values())) > most_bytes:
                raise TooMuchOutput
    try:
        process.wait(max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    out, err = kept.values()
    return bytes(out), bytes(err)


def _fed(number: int, left: memoryview) -> memoryview:
    """Write part of the input and return the rest; empty once the program has closed its stdin."""
    try:
        return left[os.write(number, left[:PIECE_BYTES]) :] if left else left
    except BlockingIOError:
        return left
    except BrokenPipeError:
        return left[:0]


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
