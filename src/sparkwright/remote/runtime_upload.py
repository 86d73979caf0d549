"""The upload of the runtime to a host over an existing connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from paramiko.channel import Channel

from sparkwright.errors import Refused
from sparkwright.protocol.events import Event, event
from sparkwright.remote import bootstrap, runtime
from sparkwright.visible import one_line

UNPACK_S = 120.0
CHUNK_BYTES = 64 * 1024
TEXT_CHARACTERS = 300


def ship(
    run: Callable[[str], Channel],
    events: Callable[[Channel], Iterator[Event]],
    found: bootstrap.Interpreter,
    where: str,
) -> Iterator[Event]:
    """Upload the runtime for this host and unpack it there; yields the progress.

    Args:
        run: starts a command there.
        events: its answers.
        found: its Python and processor.
        where: its name.

    Raises:
        Refused: the host can't take it.
        TimeoutError: the host does not read any more.
    """
    yield event("note", task="", text=f"shipping the runtime for {found.machine}, Python {found.version}")
    data = runtime.archive(found.version, found.machine).read_bytes()
    channel = run(bootstrap.unpack(runtime.content_hash(), found.path))
    try:
        channel.settimeout(UNPACK_S)  # a disk that others write to may hold it up
        yield from _sent(channel, data)
        reply = list(events(channel))
        answer = next((row for row in reversed(reply) if row["event"] in ("shipped", "not_shipped")), None)
        if answer is None or answer["event"] != "shipped":
            why = answer["why"] if answer else last_words(channel, str(reply[-1].get("text", "")) if reply else "")
            raise Refused(
                f"the runtime can't be put on the host: {one_line(why, at_most=TEXT_CHARACTERS)}.",
                where=where,
                fix="It needs some 80 MB in a home folder that can be written to; on the host: `df -h ~`.",
            )
    finally:
        channel.close()


def no_start(channel: Channel) -> str:
    """Return the last output of a runtime that is there and did not start; empty if there is none. Its command has exited."""
    lines = _errors(channel).splitlines()
    if bootstrap.NO_START not in lines:
        return ""
    answer = [line for line in lines[: lines.index(bootstrap.NO_START)] if line.strip()]
    return one_line(answer[-1], at_most=TEXT_CHARACTERS) if answer else "no output"


def last_words(channel: Channel, message: str) -> str:
    """Return the end of a command's output, its errors first."""
    text = _errors(channel).strip() or message.strip()
    return f"its last words: {one_line(text.splitlines()[-1][-200:])}" if text else "no output"


def _errors(channel: Channel) -> str:
    return channel.recv_stderr(CHUNK_BYTES).decode(errors="replace") if channel.recv_stderr_ready() else ""


def _sent(channel: Channel, data: bytes) -> Iterator[Event]:
    """Send the archive and yield the progress. Raises TimeoutError.

    A host that closes its input has given up: its answer has the reason.
    """
    try:
        channel.sendall(bootstrap.unpacker())
        for start in range(0, len(data), CHUNK_BYTES):
            channel.sendall(data[start : start + CHUNK_BYTES])
            done = min(start + CHUNK_BYTES, len(data))
            about = {"task": "runtime", "text": "shipping the runtime", "unit": "bytes"}
            yield event("progress", done=done, total=len(data), **about)
        channel.shutdown_write()
    except TimeoutError:
        raise
    except (OSError, EOFError):
        return
