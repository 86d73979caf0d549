"""The process that transfers files: a child of the runner, so that a stalled transfer can be killed and restarted.

Its request is one line of JSON on standard input (the only place with the token); it ends when that pipe closes. Each event is a
line of JSON on standard output: {"begin": path, "partial": file}, {"done": path, "from": url}, {"lost": url, "message": why,
while another address is left}, {"chose": mode, "why": ...}, {"failed": path, "kind": "down", "full" or "refused", "message": ...,
"fix": ...}.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sparkwright.errors import SparkwrightError
from sparkwright.host.models import file_transfer, hub, transfer_choice
from sparkwright.host.models.file_transfer import SourceQueue, Way
from sparkwright.secret import Secret

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
        samples = [transfer_choice.Sample(file["path"], file["size_bytes"]) for file in files]
        choice = transfer_choice.choose(source, samples, SIDE_BY_SIDE)
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
    """Exit with the parent: an orphaned transfer must not write beside the next one."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
