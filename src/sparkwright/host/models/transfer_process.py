"""The process that transfers files, a child of the runner, and its choice of a transfer mode by measurement."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from sparkwright import units
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.host.models import file_transfer, hub
from sparkwright.host.models.file_transfer import SourceQueue, Way
from sparkwright.host.models.hub import Source
from sparkwright.secret import Secret
from sparkwright.transport.connection import TransportError

Measure = Callable[[int], float]
MeasureXet = Callable[[], float]

WINDOW_S = 1.0
ANSWER_S = 5.0
MANY = 16
XET_STREAMS = 8
WORTH = 1.25  # hf_transfer and xet must be this much faster: one loses its partial files, both cost CPU
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
        ended = threading.Timer(ANSWER_S, file_transfer.abandon)  # by then there was no data, or the window is over
        ended.start()
        counts = [job.result() for job in reading]
        ended.cancel()
    return sum(counts) / max(window.lasted_s(), 1e-6)


def _read_xet(source: Source, xet_hash: str, size: int, place: tuple[int, int], window: _Window) -> int:
    got = 0
    with contextlib.suppress(Exception):  # of hf_xet; a mode that fails here is not chosen
        for piece in file_transfer.content(source, xet_hash, size, *place):
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
        contextlib.suppress(Failed, TransportError),
        hub.opened("GET", source.address(path), headers, silence_s=ANSWER_S) as answer,
    ):
        pieces = iter(answer if answer.status < 300 else ())
        while window.open() and (data := next(pieces, b"")):
            got += len(data)
    return got


# The process that transfers files: a child of the runner, so that a stalled transfer can be killed and restarted.
#
# Its request is one line of JSON on standard input (the only place with the token); it ends when that pipe closes.
# Each event is a line of JSON on standard output: {"begin": path, "partial": file}, {"done": path, "from": url},
# {"lost": url, "message": why, while another address is left}, {"chose": mode, "why": ...}, {"failed": path, "kind":
# "down", "full" or "refused", "message": ..., "fix": ...}.

SIDE_BY_SIDE = 8
PR_SET_PDEATHSIG = 1

_saying = threading.Lock()


def main() -> None:
    """Download the requested files, large ones last, and stop at the first failure."""
    _die_with_parent()
    request = json.loads(sys.stdin.buffer.readline())
    token = Secret(request["token"]) if request["token"] else None
    source = hub.Source(request["url"], request["id"], request["commit"], token, tuple(request["also"]))
    staging, files, mode = Path(request["staging"]), request["files"], request["mode"]
    if mode == "auto":
        samples = [Sample(file["path"], file["size_bytes"]) for file in files]
        choice = choose(source, samples, SIDE_BY_SIDE)
        mode = choice.mode
        _say({"chose": mode, "why": choice.why})
    file_transfer.bound_process(files, mode)
    file_transfer.prepare(staging, mode)
    way = Way(mode, request["retries"])
    one_by_one = [file for file in files if mode == "hf_transfer" and file["size_bytes"] > file_transfer.LARGE_BYTES]
    together = [file for file in files if file not in one_by_one]
    again, queue = set(request["again"]), SourceQueue(source.each)
    for some, workers in ((together, SIDE_BY_SIDE), (one_by_one, 1)):
        _fetch_all(queue, some, staging, way, again, workers)


def _fetch_all(
    queue: SourceQueue, files: Sequence[Mapping[str, Any]], staging: Path, way: Way, again: set[str], workers: int
) -> None:
    ordered = sorted(files, key=lambda file: -int(file["size_bytes"]))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        list(pool.map(lambda file: _fetch(queue, file, staging, way, file["path"] in again), ordered))


def _fetch(queue: SourceQueue, file: Mapping[str, Any], staging: Path, way: Way, again: bool) -> None:
    path = file["path"]
    try:
        _say({"begin": path, "partial": str(file_transfer.partial(staging, file))})
        source = _fetched(queue, file, staging, way, again)
        _say({"done": path, "from": source.url})
    except SparkwrightError as error:
        kind = "down" if isinstance(error, hub.HubDown) else "full" if isinstance(error, hub.DiskFull) else "refused"
        _say({"failed": path, "kind": kind, "message": error.message, "fix": error.fix})
        os._exit(0)
    except BaseException as error:
        message = f"the transfer failed: {type(error).__name__}: {error}."
        _say({"failed": path, "kind": "refused", "message": message, "fix": ""})
        os._exit(0)


def _fetched(queue: SourceQueue, file: Mapping[str, Any], staging: Path, way: Way, again: bool) -> hub.Source:
    """Download a file, from the peer's next address after a failure. Returns the source that delivered the last part."""
    while True:
        source = queue.take(file["size_bytes"])
        try:
            file_transfer.fetch(source, file, staging, way, again=again)
            return source
        except hub.HubDown as error:
            if not queue.lose(source):
                raise
            _say({"lost": source.url, "message": error.message})
        finally:
            queue.done(source, file["size_bytes"])


def _say(line: dict[str, Any]) -> None:
    with _saying:
        os.write(1, json.dumps(line).encode() + b"\n")


def _die_with_parent() -> None:
    """Exit with the parent: an orphaned transfer must not write at the same time as the next one."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
