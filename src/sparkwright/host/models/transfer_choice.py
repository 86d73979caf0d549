"""Choosing a transfer mode by measurement: each candidate runs for a moment, and its bytes are counted.

If every connection is throttled, more connections are faster, and ranges of one file (hf_transfer) or the hub's chunk store (xet)
win. If a few fill the link already, both only cost CPU, and whole files in parallel (plain) win.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

from sparkwright import units
from sparkwright.errors import Failed
from sparkwright.host.models import bounded_http, hub, xet_store
from sparkwright.host.models.hub import Source

Measure = Callable[[int], float]
MeasureXet = Callable[[], float]

WINDOW_S = 1.0
ANSWER_S = 5.0
MANY = 16
XET_STREAMS = 8
WORTH = 1.25  # hf_transfer and xet must be this much faster: one loses its partial files, both cost CPU
CHUNK_BYTES = 2**18
SMALL_BYTES = 256 * 10**6


@dataclass(frozen=True, slots=True)
class Choice:
    """A transfer mode, and the reason in words."""

    mode: str
    why: str


@dataclass(frozen=True, slots=True)
class Sample:
    """A file that a measurement may read."""

    path: str
    size_bytes: int


def choose(
    source: Source,
    files: Sequence[Sample],
    side_by_side: int,
    measure: Measure | None = None,
    measure_xet: MeasureXet | None = None,
) -> Choice:
    """Choose a mode by a measurement of about three seconds at most, or without one if the download is small.

    Args:
        side_by_side: how many files `plain` would download at once.
        measure: returns the bytes per second of a number of connections.
        measure_xet: returns the bytes per second from the chunk store, 0.0 if the files are not in it.
    """
    total = sum(file.size_bytes for file in files)
    if total < SMALL_BYTES:
        return Choice("plain", f"{units.size(total)} is too little to measure")
    measure_xet = measure_xet or (lambda: measured_xet(source, files) if measure is None else 0.0)
    rate = measure or (lambda connections: measured(source, files, connections))
    few = min(side_by_side, sum(file.size_bytes * 50 > total for file in files)) or 1
    rates = {"plain": rate(few), "hf_transfer": rate(MANY), "xet": measure_xet()}
    if not any(rates.values()):
        return Choice("plain", "no data received")
    best = max(rates, key=lambda mode: rates[mode])
    mode = best if rates[best] > WORTH * rates["plain"] else "plain"
    ways = [f"{few} connection{'s' if few > 1 else ''} {units.speed(rates['plain'])}"]
    ways.append(f"{MANY} connections {units.speed(rates['hf_transfer'])}")
    if rates["xet"]:
        ways.append(f"xet {units.speed(rates['xet'])}")
    return Choice(mode, ", ".join(ways))


def measured_xet(source: Source, files: Sequence[Sample]) -> float:
    """Return the bytes per second from the chunk store; 0.0 if the largest file is not in it, or without data."""
    window = _Window()
    largest = max(files, key=lambda file: file.size_bytes)
    try:
        found = hub.located(source, {"path": largest.path, "size_bytes": largest.size_bytes})
    except Failed:
        return 0.0
    if not found.xet_hash:
        return 0.0
    places = pairwise(n * largest.size_bytes // XET_STREAMS for n in range(XET_STREAMS + 1))
    with ThreadPoolExecutor(max_workers=XET_STREAMS) as pool:
        reading = [
            pool.submit(_read_xet, source, found.xet_hash, largest.size_bytes, place, window) for place in places
        ]
        ended = threading.Timer(ANSWER_S, xet_store.abandon)  # by then there was no data, or the window is over
        ended.start()
        counts = [job.result() for job in reading]
        ended.cancel()
    return sum(counts) / max(window.lasted_s(), 1e-6)


def _read_xet(source: Source, xet_hash: str, size: int, place: tuple[int, int], window: _Window) -> int:
    got = 0
    with contextlib.suppress(Exception):  # of hf_xet; a mode that fails here is not chosen
        for piece in xet_store.content(source, xet_hash, size, *place):
            if not window.open():
                break
            got += len(piece)
    return got


def measured(source: Source, files: Sequence[Sample], connections: int) -> float:
    """Return the bytes per second of a number of connections together, each at its own offset; 0.0 without data."""
    window = _Window()
    places = [_place(files, n, connections) for n in range(connections)]
    with ThreadPoolExecutor(max_workers=connections) as pool:
        counts = list(pool.map(lambda place: _read(source, place[0], place[1], window), places))
    return sum(counts) / max(window.lasted_s(), 1e-6)


class _Window:
    """A time window that begins with the first byte of any connection, so that latency does not count as low bandwidth."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._began_s: float | None = None

    def open(self) -> bool:
        """Return True while the window is open; the first call opens it."""
        with self._guard:
            if self._began_s is None:
                self._began_s = time.monotonic()
        return self.lasted_s() < WINDOW_S

    def lasted_s(self) -> float:
        return time.monotonic() - self._began_s if self._began_s is not None else 0.0


def _place(files: Sequence[Sample], n: int, connections: int) -> tuple[str, int]:
    """Return a file and an offset for the n-th connection, far from the others'."""
    largest = sorted(files, key=lambda file: -file.size_bytes)[:connections]
    file = largest[n % len(largest)]
    turns = -(-connections // len(largest))
    return file.path, (n // len(largest)) * file.size_bytes // turns


def _read(source: Source, path: str, offset: int, window: _Window) -> int:
    got = 0
    headers = {**source.headers(), "Range": f"bytes={offset}-"}
    with (
        contextlib.suppress(Exception),  # of requests and urllib3; an endless answer
        bounded_http.session() as session,
        session.get(source.address(path), headers=headers, stream=True, timeout=ANSWER_S) as answer,
    ):
        answer.raise_for_status()
        while window.open() and (data := answer.raw.read(CHUNK_BYTES)):
            got += len(data)
    return got
