"""A container's log as Docker streams it: selected lines, framing, and waiting for more."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from sparkwright.sandbox.docker.container import STDERR, STDOUT, Container
from sparkwright.sandbox.docker.docker_filters import is_true
from sparkwright.sandbox.web import Refused

POLL_S = 0.05


def stream(container: Container, query: dict[str, str]) -> Iterator[bytes]:
    """Yield frames of the requested lines; with follow=1 until the container ends. Raises Refused if no stream is requested."""
    wanted = {number for name, number in (("stdout", STDOUT), ("stderr", STDERR)) if is_true(query.get(name))}
    if not wanted:
        raise Refused(400, "Bad parameters: you must choose at least one stream")
    return _frames(_lines(container, query, wanted), with_time=is_true(query.get("timestamps")))


def _lines(container: Container, query: dict[str, str], wanted: set[int]) -> Iterator[tuple[float, str, int]]:
    since_s, until_s = float(query.get("since") or 0), float(query.get("until") or 0)

    def asked(first: int) -> list[tuple[float, str, int]]:
        rows = container.logs[first:]
        return [row for row in rows if row[0] >= since_s and (not until_s or row[0] <= until_s) and row[2] in wanted]

    seen, tail = len(container.logs), query.get("tail", "all")
    rows = asked(0)
    yield from rows if not tail.isdigit() else rows[len(rows) - min(int(tail), len(rows)) :]
    ended = False
    while is_true(query.get("follow")) and not ended and (not until_s or time.time() < until_s):
        ended = not container.running  # read before the lines, so that the last ones are not missed
        more, seen = asked(seen), len(container.logs)
        yield from more
        time.sleep(0 if ended else POLL_S)


def _frames(rows: Iterator[tuple[float, str, int]], *, with_time: bool) -> Iterator[bytes]:
    """Yield lines in Docker's framing: stream number, length, bytes."""
    for at_s, line, number in rows:
        stamp = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z ") if with_time else ""
        data = (stamp + line).encode() + b"\n"
        yield struct.pack(">BxxxL", number, len(data)) + data
