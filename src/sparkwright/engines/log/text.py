"""Splitting of a log's bytes into lines. Logs may be cut, coloured, not UTF-8 or without a final newline."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Protocol

CHUNK_BYTES = 1 << 20
#: of a longer line only the beginning is read
LINE_BYTES = 1 << 16
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


#: prefixes that other programs add to a line: docker compose, `docker logs -t`, the journal, torch's rank
WRAPPED = re.compile(
    r"^(?:[\w.-]{1,64} {0,40}\| ?"
    r"|\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.,]{0,12}(?:Z|[+-]\d\d:?\d\d)?\]? (?:(?:[\w.-]{1,64} )?[\w.@-]{1,64}\[\d{1,9}\]: )?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w.@-]{1,64}(?:\[\d{1,9}\])?: "
    r"|\[rank\d{1,4}\]: ?){1,3}"
)


class BinaryFile(Protocol):
    """A file opened as bytes."""

    def read(self, size: int, /) -> bytes: ...


Text = str | bytes | BinaryFile | Iterable[str] | Iterable[bytes]


class LineCutter:
    """A cutter of chunks at line ends. A carriage return ends a line too: progress bars are written with it."""

    def __init__(self) -> None:
        self._rest = b""

    def push(self, chunk: bytes) -> bytes:
        """Return the whole lines so far, each ended by a newline; the beginning of another stays for the next chunk."""
        block = self._rest + chunk
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        self._rest = block[end : end + LINE_BYTES]
        return block[:end].replace(b"\r", b"\n")

    def rest(self) -> bytes:
        """Return the last line, if it has no line end."""
        rest, self._rest = self._rest, b""
        return rest


def chunks_of(text: Text) -> Iterator[bytes]:
    """Yield a log as chunks of bytes. An iterable gives pieces of the text, cut anywhere: not lines without their ends."""
    if isinstance(text, str):
        pieces: Iterable[str | bytes] = (text[at : at + CHUNK_BYTES] for at in range(0, len(text), CHUNK_BYTES))
    elif isinstance(text, bytes):
        pieces = (text[at : at + CHUNK_BYTES] for at in range(0, len(text), CHUNK_BYTES))
    elif hasattr(text, "read"):
        pieces = iter(partial(text.read, CHUNK_BYTES), b"")
    else:
        pieces = text
    for piece in pieces:
        yield piece.encode(errors="replace") if isinstance(piece, str) else piece


def lines_of(text: Text) -> Iterator[str]:
    """Yield the lines of a log that are not empty, without colour and line ends. Memory stays bounded."""
    cutter = LineCutter()
    for chunk in chunks_of(text):
        yield from map(decode, filter(None, cutter.push(chunk).split(b"\n")))
    rest = cutter.rest()
    if rest:
        yield decode(rest)


def decode(line: bytes) -> str:
    """Return one line as text, without colour."""
    text = line[:LINE_BYTES].decode(errors="replace")
    return ANSI.sub("", text) if "\x1b" in text else text


def unwrapped(line: str) -> str:
    """Return a line as the engine wrote it, without the prefix of compose, the journal or a timestamp."""
    return WRAPPED.sub("", line, count=1)


def plain(text: str) -> str:
    """Return a log for reading: without colours and cursor moves, with each state of a progress bar on its own line."""
    return ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
