"""Streaming from one host to another through this machine, for hosts that can't reach each other. Nothing is stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from paramiko.channel import Channel

from sparkwright.errors import Failed
from sparkwright.transport.connection import MinimumRate, ProgressDeadline, TimedOut

CHUNK_BYTES = 256 * 1024
#: time limit for the first byte, in seconds: the Docker Engine may first unpack a whole image
SILENCE_TIMEOUT_S = 3600.0
#: minimum rate after the first byte: that of a slow home connection
MIN_RATE = MinimumRate(64 * 2**20, 1800.0)
EXIT_TIMEOUT_S = 1800.0
#: number of chunks that are searched for a program's last line
MAX_LAST_CHUNKS = 64
MAX_LINE_CHARS = 400


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """The exit of the receiving program."""

    code: int
    #: last line of the program's output
    message: str
    sent_bytes: int


def relay(source: Channel, target: Channel, progress: Callable[[int], None]) -> ProgramExit:
    """Copy the output of the source's program to the target's, and wait for both.

    Raises Failed if either fails. The target's program then receives truncated input, and must detect that itself.

    Args:
        progress: called with the number of bytes copied so far.
    """
    sent_bytes = 0
    deadline: ProgressDeadline | None = None
    try:
        while chunk_bytes := _copy_chunk(source, target, deadline):
            deadline = deadline or ProgressDeadline(MIN_RATE)
            sent_bytes += chunk_bytes
            progress(sent_bytes)
        if _exit_code(source, "source"):
            raise Failed(f"the source host failed: {_last_line(source)}")
        target.shutdown_write()
        return ProgramExit(_exit_code(target, "target"), _last_line(target), sent_bytes)
    except (OSError, TimedOut) as error:
        reason = _last_line(target) if target.exit_status_ready() else str(error) or type(error).__name__
        raise Failed(f"the copy broke off after {sent_bytes} bytes: {reason}", fix="Run the command again.") from None
    finally:
        source.close()
        target.close()


def _copy_chunk(source: Channel, target: Channel, deadline: ProgressDeadline | None) -> int:
    """Copy one chunk and return its size, 0 at the end. Raises TimedOut. deadline: None before the first byte."""
    started_s = time.monotonic()
    try:
        source.settimeout(deadline.remaining_s() if deadline else SILENCE_TIMEOUT_S)
        data = source.recv(CHUNK_BYTES)
        target.settimeout(deadline.remaining_s() if deadline else SILENCE_TIMEOUT_S)
        target.sendall(data)
    except (TimeoutError, TimedOut):
        observed_rate = (
            f"less than {MIN_RATE.bytes} bytes in {MIN_RATE.seconds:g} s"
            if deadline
            else f"nothing in {SILENCE_TIMEOUT_S:g} s"
        )
        raise TimedOut(observed_rate) from None
    if deadline:
        deadline.record_wait(time.monotonic() - started_s, len(data))
    return len(data)


def _exit_code(channel: Channel, role: str) -> int:
    """Wait for a program to exit. Raises Failed if the connection is lost. role: source or target, for the message."""
    if not channel.status_event.wait(timeout=EXIT_TIMEOUT_S) or channel.exit_status < 0:
        raise Failed(f"the connection to the {role} host broke off.", fix="Run the command again.")
    return int(channel.exit_status)


def _last_line(channel: Channel) -> str:
    text = b""
    for ready, read in ((channel.recv_stderr_ready, channel.recv_stderr), (channel.recv_ready, channel.recv)):
        for _ in range(MAX_LAST_CHUNKS):
            if ready():
                text = (text + read(CHUNK_BYTES))[-CHUNK_BYTES:]
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1][-MAX_LINE_CHARS:] if lines else "no output"
