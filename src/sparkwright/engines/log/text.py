"""Split a log into lines, match kinds of lines, and parse numbers and times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

CHUNK_BYTES = 1 << 20
#: longer lines are truncated
LINE_BYTES = 1 << 16
ANSI_CODE_PATTERN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

#: prefixes that other programs add to a line: docker compose, `docker logs -t`, the journal, and torch with its rank
WRAPPER_PREFIX_PATTERN = re.compile(
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
    """Splits chunks into complete lines. A carriage return also ends a line, since progress bars use it."""

    def __init__(self) -> None:
        self._remainder = b""

    def push(self, chunk: bytes) -> bytes:
        """Return the complete lines, each with a newline, and keep the beginning of the next line."""
        block = self._remainder + chunk
        end = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        self._remainder = block[end : end + LINE_BYTES]
        return block[:end].replace(b"\r", b"\n")

    def take_remainder(self) -> bytes:
        """Return the last line if it has no line end, else nothing."""
        remainder, self._remainder = self._remainder, b""
        return remainder


def iter_chunks(text: LogText) -> Iterator[bytes]:
    """Yield a log as chunks of bytes. Items of an iterable are joined as they are, so lines must include their line ends."""
    if isinstance(text, str | bytes):
        chunks: Iterable[str | bytes] = (
            text[offset : offset + CHUNK_BYTES] for offset in range(0, len(text), CHUNK_BYTES)
        )
    elif hasattr(text, "read"):
        chunks = iter(partial(text.read, CHUNK_BYTES), b"")
    else:
        chunks = text
    for chunk in chunks:
        yield chunk.encode(errors="replace") if isinstance(chunk, str) else chunk


def iter_lines(text: LogText) -> Iterator[str]:
    """Yield the non-empty lines of a log without colours and line ends. Memory use is bounded."""
    splitter = LineSplitter()
    for chunk in iter_chunks(text):
        yield from map(decode_line, filter(None, splitter.push(chunk).split(b"\n")))
    remainder = splitter.take_remainder()
    if remainder:
        yield decode_line(remainder)


def decode_line(line: bytes) -> str:
    """Return a line as text, truncated and without colours."""
    text = line[:LINE_BYTES].decode(errors="replace")
    return ANSI_CODE_PATTERN.sub("", text) if "\x1b" in text else text


def strip_wrapper(line: str) -> str:
    """Return a line without the prefixes that other programs added."""
    return WRAPPER_PREFIX_PATTERN.sub("", line, count=1)


def strip_terminal_codes(text: str) -> str:
    """Return text without colours and cursor movements; each state of a progress bar becomes a line."""
    return ANSI_CODE_PATTERN.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


@dataclass(frozen=True, slots=True)
class LinePattern:
    """A kind of log line.

    A log is first searched for the literal needles, and a pattern is compiled only once its needle has been found, since few
    lines contain a needle. The search is fast for needles that begin with a capital letter or a rare character.
    """

    #: a literal string in each line that the pattern matches
    needle: str
    pattern: str

    def match(self, line: str) -> re.Match[str] | None:
        """Return the pattern's match anywhere in a line."""
        return re.search(self.pattern, line) if self.needle in line else None


def line_pattern(needle: str, pattern: str = "") -> LinePattern:
    """Return a kind of line; without a pattern, all lines with the needle."""
    return LinePattern(needle, pattern or re.escape(needle))


def parse_count(text: str) -> int | None:
    """Return the count in a text, in which commas may separate thousands; None if it is too long."""
    digits = text.replace(",", "")
    return int(digits) if 0 < len(digits) < 20 else None


def parse_number(text: str) -> float | None:
    """Return a number from a text of digits and points; None for "." and for more than one point."""
    return float(text) if text.count(".") < 2 and text != "." else None


def parse_time(line: str, pattern: re.Pattern[str]) -> datetime | None:
    """Return the time in a line, in an arbitrary leap year because lines have no year; None if the line has none.

    pattern: may have the groups month, day, hour, minute, second and milli. Minutes may exceed 59, for a clock that starts with
    the process.
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


def seconds_between(start: datetime, end: datetime) -> float:
    """Return the seconds between two times without a year; an end long before the start is in the next year."""
    if end < start - timedelta(days=180):
        end += timedelta(days=366)
    return max(0.0, round((end - start).total_seconds(), 3))
