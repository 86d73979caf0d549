"""Run a program with limits on its output and run time, and call a function with a timeout."""

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

T = TypeVar("T")

#: limit on both output streams together; the longest output, the kernel's log, is 1 MB
MAX_BYTES = 16 * 2**20
PIECE_BYTES = 1 << 16


class ProgramTimeout(Exception):
    """The program exceeded its time limit and was killed."""


class TooMuchOutput(Exception):
    """The program printed more than allowed and was killed."""


def run(
    argv: Sequence[str],
    *,
    stdin: bytes,
    timeout_s: float,
    env: Mapping[str, str],
    max_bytes: int = MAX_BYTES,
    limit_resources: Callable[[], None] | None = None,
) -> tuple[int, bytes, bytes]:
    """Run a program and return its exit code, standard output and standard error.

    Args:
        max_bytes: limit on both output streams together.
        limit_resources: called in the child before the program starts. The child then leads a process group, which is killed
            as a whole.

    Raises:
        OSError: The program could not be started.
        TooMuchOutput: It exceeded max_bytes and was killed.
        ProgramTimeout: It exceeded timeout_s and was killed.
    """
    pipe = subprocess.PIPE
    has_group = limit_resources is not None
    with subprocess.Popen(
        list(argv),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        env=dict(env),
        preexec_fn=limit_resources,
        start_new_session=has_group,
    ) as process:
        try:
            out, err = _exchange(process, stdin, time.monotonic() + timeout_s, max_bytes)
        except TimeoutError:
            _kill(process, has_group=has_group)
            raise ProgramTimeout from None
        except BaseException:
            _kill(process, has_group=has_group)
            raise
        return process.returncode, out, err


def _kill(process: subprocess.Popen[bytes], *, has_group: bool) -> None:
    if has_group and process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _exchange(process: subprocess.Popen[bytes], stdin: bytes, deadline_s: float, max_bytes: int) -> tuple[bytes, bytes]:
    """Write the input and read the output until the program exits. Raises TimeoutError or TooMuchOutput."""
    assert process.stdin and process.stdout and process.stderr
    outputs = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    stdin_fd, remaining = process.stdin.fileno(), memoryview(stdin)
    os.set_blocking(stdin_fd, False)
    with selectors.DefaultSelector() as selector:
        for fd in outputs:
            selector.register(fd, selectors.EVENT_READ)
        selector.register(stdin_fd, selectors.EVENT_WRITE)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline_s - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if key.fd == stdin_fd:
                    remaining = _write_input(stdin_fd, remaining)
                    if not remaining:
                        selector.unregister(stdin_fd)
                        process.stdin.close()
                elif piece := os.read(key.fd, PIECE_BYTES):
                    outputs[key.fd] += piece
                else:
                    selector.unregister(key.fd)
            if sum(map(len, outputs.values())) > max_bytes:
                raise TooMuchOutput
    try:
        process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    out, err = outputs.values()
    return bytes(out), bytes(err)


def _write_input(fd: int, remaining: memoryview) -> memoryview:
    """Write part of the input and return the rest, which is empty if the program has closed its standard input."""
    try:
        return remaining[os.write(fd, remaining[:PIECE_BYTES]) :] if remaining else remaining
    except BlockingIOError:
        return remaining
    except BrokenPipeError:
        return remaining[:0]


def call_with_timeout(timeout_s: float, function: Callable[[], T]) -> T:
    """Call a function in a thread and return its result, or raise its exception.

    Raises TimeoutError if it takes longer; the thread continues in the background.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    wait([outcome], timeout_s)
    if not outcome.done():
        raise TimeoutError(f"no answer within {timeout_s:g} s")
    return outcome.result()
