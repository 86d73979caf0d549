"""The process that transfers files, in the mode it was told to use or measured to be the fastest.

It is a child of the runner, so that a stalled transfer can be killed and restarted, and it exits with its parent. Its request is
one line of JSON on standard input (the only place that contains the token). Each event is a line of JSON on standard output:

    {"begin": path, "partial": file}
    {"done": path, "from": url}
    {"lost": url, "message": reason}                 the transfer continues over the other addresses
    {"chose": mode, "why": reason}
    {"failed": path, "kind": "down", "full" or "refused", "message": ..., "fix": ..., "pause_s": requested by the hub}
"""

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
from sparkwright.host.models.file_transfer import SourceQueue, TransferSettings
from sparkwright.host.models.hub import Source
from sparkwright.secret import Secret
from sparkwright.transport.connection import TransportError

Measure = Callable[[int], float]
MeasureXet = Callable[[], float]

#: duration of a measurement
WINDOW_S = 1.0
#: maximum time that a measurement waits for data
MAX_SILENCE_S = 5.0
#: number of connections with which hf_transfer is measured
HF_TRANSFER_CONNECTIONS = 16
XET_STREAMS = 8
MIN_SPEEDUP = 1.25  # of hf_transfer and xet over plain: hf_transfer loses its partial files, and both cost CPU
MIN_MEASURED_BYTES = 256 * 10**6  # smaller downloads are not measured

PARALLEL_FILES = 8
PR_SET_PDEATHSIG = 1

_output_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """A transfer mode, with the reason for the user."""

    mode: str
    reason: str


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A file that a measurement may read."""

    path: str
    size_bytes: int


def choose_mode(
    source: Source,
    files: Sequence[SampleFile],
    parallel_files: int,
    measure: Measure | None = None,
    measure_xet: MeasureXet | None = None,
) -> ModeChoice:
    """Choose a mode by measuring for at most about three seconds. A small download is not measured.

    Args:
        parallel_files: number of files that `plain` would download at once.
        measure: returns bytes per second over a given number of connections.
        measure_xet: returns bytes per second from the chunk store; 0.0 if the files are not in it.
    """
    total_bytes = sum(file.size_bytes for file in files)
    if total_bytes < MIN_MEASURED_BYTES:
        return ModeChoice("plain", f"{units.format_size(total_bytes)} is too little to measure")
    rate_of = measure or (lambda connection_count: measure_rate(source, files, connection_count))
    rate_of_xet = measure_xet or (lambda: measure_xet_rate(source, files) if measure is None else 0.0)
    plain_connections = min(parallel_files, sum(file.size_bytes * 50 > total_bytes for file in files)) or 1
    rates = {"plain": rate_of(plain_connections), "hf_transfer": rate_of(HF_TRANSFER_CONNECTIONS), "xet": rate_of_xet()}
    if not any(rates.values()):
        return ModeChoice("plain", "no data received")
    best_mode = max(rates, key=lambda mode: rates[mode])
    mode = best_mode if rates[best_mode] > MIN_SPEEDUP * rates["plain"] else "plain"
    summaries = [
        f"{plain_connections} connection{'s' if plain_connections > 1 else ''} {units.format_rate(rates['plain'])}",
        f"{HF_TRANSFER_CONNECTIONS} connections {units.format_rate(rates['hf_transfer'])}",
    ]
    if rates["xet"]:
        summaries.append(f"xet {units.format_rate(rates['xet'])}")
    return ModeChoice(mode, ", ".join(summaries))


def measure_xet_rate(source: Source, files: Sequence[SampleFile]) -> float:
    """Return bytes per second from the chunk store; 0.0 if the largest file is not in it, or no data is received."""
    window = _Window()
    largest_file = max(files, key=lambda file: file.size_bytes)
    try:
        location = hub.locate_file(source, {"path": largest_file.path, "size_bytes": largest_file.size_bytes})
    except Failed:
        return 0.0
    if not location.xet_hash:
        return 0.0
    ranges = pairwise(n * largest_file.size_bytes // XET_STREAMS for n in range(XET_STREAMS + 1))
    with ThreadPoolExecutor(max_workers=XET_STREAMS) as pool:
        size_bytes = largest_file.size_bytes
        jobs = [pool.submit(_read_xet, source, location.xet_hash, size_bytes, span, window) for span in ranges]
        # without any data, the window never opens and the readers would wait forever
        timer = threading.Timer(MAX_SILENCE_S, file_transfer.abort_transfers)
        timer.start()
        byte_counts = [job.result() for job in jobs]
        timer.cancel()
    return sum(byte_counts) / max(window.elapsed_s(), 1e-6)


def _read_xet(source: Source, xet_hash: str, size_bytes: int, byte_range: tuple[int, int], window: _Window) -> int:
    received_bytes = 0
    with contextlib.suppress(Exception):  # any error from hf_xet: a mode that fails here is not chosen
        for piece in file_transfer.stream_content(source, xet_hash, size_bytes, *byte_range):
            if not window.is_open():
                break
            received_bytes += len(piece)
    return received_bytes


def measure_rate(source: Source, files: Sequence[SampleFile], connection_count: int) -> float:
    """Return bytes per second over a number of connections, each at a different offset; 0.0 if no data is received."""
    window = _Window()
    positions = [_pick_position(files, n, connection_count) for n in range(connection_count)]
    with ThreadPoolExecutor(max_workers=connection_count) as pool:
        jobs = [pool.submit(_read, source, path, offset, window) for path, offset in positions]
        byte_counts = [job.result() for job in jobs]
    return sum(byte_counts) / max(window.elapsed_s(), 1e-6)


class _Window:
    """A time window that opens with the first byte of any connection, so that latency does not count as low bandwidth."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened_s: float | None = None

    def is_open(self) -> bool:
        """Return True while the window is open; the first call opens it."""
        with self._lock:
            if self._opened_s is None:
                self._opened_s = time.monotonic()
        return self.elapsed_s() < WINDOW_S

    def elapsed_s(self) -> float:
        return time.monotonic() - self._opened_s if self._opened_s is not None else 0.0


def _pick_position(files: Sequence[SampleFile], n: int, connection_count: int) -> tuple[str, int]:
    """Return a file and an offset for the n-th connection, far from those of the other connections."""
    largest_files = sorted(files, key=lambda file: -file.size_bytes)[:connection_count]
    file = largest_files[n % len(largest_files)]
    connections_per_file = -(-connection_count // len(largest_files))
    return file.path, (n // len(largest_files)) * file.size_bytes // connections_per_file


def _read(source: Source, path: str, offset: int, window: _Window) -> int:
    received_bytes = 0
    headers = {**source.headers(), "Range": f"bytes={offset}-"}
    with (
        contextlib.suppress(Failed, TransportError),
        hub.open_stream("GET", source.file_url(path), headers, max_silence_s=MAX_SILENCE_S) as response,
    ):
        pieces = iter(response if response.status < 300 else ())
        while window.is_open() and (data := next(pieces, b"")):
            received_bytes += len(data)
    return received_bytes


def main() -> None:
    """Download the requested files, and exit at the first failure."""
    _die_with_parent()
    request = json.loads(sys.stdin.buffer.readline())
    token = Secret(request["token"]) if request["token"] else None
    source = hub.Source(request["url"], request["id"], request["commit"], token, tuple(request["also"]))
    staging, files, mode = Path(request["staging"]), request["files"], request["mode"]
    if mode == "auto":
        samples = [SampleFile(file["path"], file["size_bytes"]) for file in files]
        choice = choose_mode(source, samples, PARALLEL_FILES)
        mode = choice.mode
        _write_event({"chose": mode, "why": choice.reason})
    file_transfer.limit_process(files, mode)
    file_transfer.prepare_folder(staging, mode)
    settings = TransferSettings(mode, request["retries"], request["stall_s"])
    range_files = [
        file for file in files if mode == "hf_transfer" and file["size_bytes"] > file_transfer.MIN_RANGES_FILE_BYTES
    ]
    plain_files = [file for file in files if file not in range_files]
    mismatched_paths, queue = set(request["again"]), SourceQueue(source.single_address_sources)
    for batch, workers in ((plain_files, PARALLEL_FILES), (range_files, 1)):
        _download_all(queue, batch, staging, settings, mismatched_paths, workers)


def _download_all(
    queue: SourceQueue,
    files: Sequence[Mapping[str, Any]],
    staging: Path,
    settings: TransferSettings,
    mismatched_paths: set[str],
    workers: int,
) -> None:
    largest_first = sorted(files, key=lambda file: -int(file["size_bytes"]))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        jobs = [
            pool.submit(_download, queue, file, staging, settings, file["path"] in mismatched_paths)
            for file in largest_first
        ]
        for job in jobs:
            job.result()


def _download(
    queue: SourceQueue, file: Mapping[str, Any], staging: Path, settings: TransferSettings, discard_partial: bool
) -> None:
    path = file["path"]
    try:
        _write_event({"begin": path, "partial": str(file_transfer.partial_path(staging, file))})
        source = _download_from_any(queue, file, staging, settings, discard_partial)
        _write_event({"done": path, "from": source.url})
    except SparkwrightError as error:
        event = {"failed": path, "kind": "refused", "message": error.message, "fix": error.fix}
        if isinstance(error, hub.HubDown) and not error.is_final:
            event |= {"kind": "down", "pause_s": error.pause_s}
        elif isinstance(error, hub.DiskFull):
            event["kind"] = "full"
        _write_event(event)
        os._exit(0)
    except BaseException as error:
        message = f"the transfer failed: {type(error).__name__}: {error}."
        _write_event({"failed": path, "kind": "refused", "message": message, "fix": ""})
        os._exit(0)


def _download_from_any(
    queue: SourceQueue, file: Mapping[str, Any], staging: Path, settings: TransferSettings, discard_partial: bool
) -> hub.Source:
    """Download a file, trying a peer's other addresses after a failure. Returns the address that delivered the last part."""
    while True:
        source = queue.take(file["size_bytes"])
        try:
            file_transfer.download_file(source, file, staging, settings, discard_partial=discard_partial)
            return source
        except hub.HubDown as error:
            if not queue.exclude(source):
                raise
            _write_event({"lost": source.url, "message": error.message})
        finally:
            queue.release(source, file["size_bytes"])


def _write_event(event: dict[str, Any]) -> None:
    with _output_lock:
        os.write(1, json.dumps(event).encode() + b"\n")


def _die_with_parent() -> None:
    """Make the kernel kill this process with its parent: an orphan would write at the same time as the next transfer."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
