"""Streaming from one host to another through this machine, for hosts that can't reach each other. Nothing is stored."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from paramiko.channel import Channel

from sparkwright.errors import Failed
from sparkwright.transport.connection import MinimumRate, ProgressDeadline, TimedOut

CHUNK_BYTES = 256 * 1024
#: time limits: Docker Engine may unpack a whole image before the first byte; after that, the slowest link is a slow home
#: connection
SILENCE_TIMEOUT_S, MIN_RATE = 3600.0, MinimumRate(64 * 2**20, 1800.0)
EXIT_TIMEOUT_S = 1800.0
#: limits on a program's last line: the chunks that are read for it, so that endless output is not awaited, and its characters
MAX_LAST_CHUNKS, MAX_LINE_CHARS = 64, 400


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """The exit of the receiving program."""

    code: int
    #: its last line
    message: str
    sent_bytes: int


def relay(source: Channel, target: Channel, progress: Callable[[int], None]) -> ProgramExit:
    """Copy the output of the source's program to the target's, and wait for both.

    Raises Failed if either breaks off, in which case the target never sees the end of the input.

    Args:
        progress: called with the number of bytes copied so far.
    """
    sent = 0
    clock: ProgressDeadline | None = None
    try:
        while data := _copy_chunk(source, target, clock):
            clock = clock or ProgressDeadline(MIN_RATE)
            sent += data
            progress(sent)
        code = _exit_code(source, "the host it comes from")
        if code:
            raise Failed(f"the host it comes from gave up: {_last_line(source)}")
        target.shutdown_write()
        code = _exit_code(target, "the host it goes to")
        return ProgramExit(code, _last_line(target), sent)
    except (OSError, TimedOut) as error:
        reason = _last_line(target) if target.exit_status_ready() else str(error) or type(error).__name__
        raise Failed(f"the copy broke off after {sent} bytes: {reason}", fix="Run the command again.") from None
    finally:
        source.close()
        target.close()


def _copy_chunk(source: Channel, target: Channel, clock: ProgressDeadline | None) -> int:
    """Copy one chunk and return its size, 0 at the end. Raises TimedOut if the transfer is slower than MIN_RATE."""
    started_s = time.monotonic()
    try:
        source.settimeout(clock.remaining_s() if clock else SILENCE_TIMEOUT_S)
        data = source.recv(CHUNK_BYTES)
        target.settimeout(clock.remaining_s() if clock else SILENCE_TIMEOUT_S)
        target.sendall(data)
    except (TimeoutError, TimedOut):
        observed_rate = (
            f"less than {MIN_RATE.bytes} bytes in {MIN_RATE.seconds:g} s"
            if clock
            else f"nothing in {SILENCE_TIMEOUT_S:g} s"
        )
        raise TimedOut(observed_rate) from None
    if clock:
        clock.record_wait(time.monotonic() - started_s, len(data))
    return len(data)


def _exit_code(channel: Channel, who: str) -> int:
    if not channel.status_event.wait(timeout=EXIT_TIMEOUT_S) or channel.exit_status < 0:
        raise Failed(f"the connection to {who} broke off.", fix="Run the command again.")
    return int(channel.exit_status)


def _last_line(channel: Channel) -> str:
    text = b""
    for ready, read in ((channel.recv_stderr_ready, channel.recv_stderr), (channel.recv_ready, channel.recv)):
        for _ in range(MAX_LAST_CHUNKS):
            if ready():
                text = (text + read(CHUNK_BYTES))[-CHUNK_BYTES:]
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1][-MAX_LINE_CHARS:] if lines else "no output"
