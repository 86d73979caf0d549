"""A log's bytes as lines, the lines that are worth reading, and their words as values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

CHUNK_BYTES = 1 << 20
#: of a longer line only the beginning is read
LINE_BYTES = 1 << 16
ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


#: prefixes that other programs add to a line: docker compose, `docker logs -t`, the journal, torch's rank
WRAPPER_PREFIX = re.compile(
    r"^(?:[\w.-]{1,64} {0,40}\| ?"
    r"|\[?\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[\d.,]{0,12}(?:Z|[+-]\d\d:?\d\d)?\]? (?:(?:[\w.-]{1,64} )?[\w.@-]{1,64}\[\d{1,9}\]: )?"
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d [\w.-]{1,64} [\w.@-]{1,64}(?:\[\d{1,9}\])?: "
    r"|\[rank\d{1,4}\]: ?){1,3}"
)


class BinaryFile(Protocol):
    """A file opened as bytes."""

    def read(self, size: int, /) -> bytes: ...


LogText = str | bytes | BinaryFile | Iterable[str] | Iterable[bytes]


class LineSplitter:
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


def iter_chunks(text: LogText) -> Iterator[bytes]:
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


def iter_lines(text: LogText) -> Iterator[str]:
    """Yield the lines of a log that are not empty, without colour and line ends. Memory stays bounded."""
    cutter = LineSplitter()
    for chunk in iter_chunks(text):
        yield from map(decode_line, filter(None, cutter.push(chunk).split(b"\n")))
    rest = cutter.rest()
    if rest:
        yield decode_line(rest)


def decode_line(line: bytes) -> str:
    """Return one line as text, without colour."""
    text = line[:LINE_BYTES].decode(errors="replace")
    return ANSI.sub("", text) if "\x1b" in text else text


def strip_wrapper(line: str) -> str:
    """Return a line as the engine wrote it, without the prefix of compose, the journal or a timestamp."""
    return WRAPPER_PREFIX.sub("", line, count=1)


def strip_terminal_codes(text: str) -> str:
    """Return a log for reading: without colours and cursor moves, with each state of a progress bar on its own line."""
    return ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


@dataclass(frozen=True, slots=True)
class Line:
    """A kind of log line, by its needle and its pattern.

    Few lines hold a needle, so a log is read at the speed of a search for literals, and a pattern is compiled only once its
    needle is found. Needles begin with a capital or a rare character where possible, which makes that search fast.
    """

    #: a literal in each line that the pattern matches
    needle: str
    pattern: str

    def match(self, line: str) -> re.Match[str] | None:
        """Return the match of the pattern in a line, or None."""
        return re.search(self.pattern, line) if self.needle in line else None


def line(needle: str, pattern: str = "") -> Line:
    """Return a kind of line; without a pattern the needle is the pattern."""
    return Line(needle, pattern or re.escape(needle))


def parse_count(text: str) -> int | None:
    """Return a count, with or without commas between its thousands."""
    digits = text.replace(",", "")
    return int(digits) if 0 < len(digits) < 20 else None


def parse_number(text: str) -> float | None:
    """Return a number of digits and at most one point."""
    return float(text) if text.count(".") < 2 and text != "." else None


def parse_time(line: str, pattern: re.Pattern[str]) -> datetime | None:
    """Return the time of a line, in a leap year: few engines log the year.

    pattern: with groups of these names: month, day, hour, minute, second, milli. A clock that begins with the process has no day,
    and its minutes may be more than 59.
    """
    match = pattern.search(line)
    if match is None:
        return None
    fields = {name: int(text or 0) for name, text in match.groupdict().items()}
    try:
        day = datetime(2024, fields.get("month", 1), fields.get("day", 1), fields.get("hour", 0))
    except ValueError:
        return None
    return day + timedelta(
        minutes=fields.get("minute", 0), seconds=fields.get("second", 0), milliseconds=fields.get("milli", 0)
    )


def seconds_between(begin: datetime, end: datetime) -> float:
    """Return the seconds between two times without a year; an end before the begin is in the next year."""
    if end < begin - timedelta(days=180):
        end += timedelta(days=366)
    return max(0.0, round((end - begin).total_seconds(), 3))
