"""Transfer one file into a folder: sequentially, in parallel ranges, or from the hub's chunk store.

No mode writes more bytes than the size in spark.lock; the caller verifies the hash. A killed sequential transfer leaves the
beginning of a file and is resumed there. A killed range transfer leaves holes, so its partial file is removed.

The chunk store (Xet) is read through hf_xet. The hub returns a file's hash in the store (X-Xet-Hash) and a short-lived token
for the store; the hub's own token is sent only to the hub. The protocol: https://huggingface.co/docs/xet.
"""

from __future__ import annotations

import functools
import hashlib
import os
import resource
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from sparkwright.errors import Failed
from sparkwright.host.models import hub
from sparkwright.host.models.hub import OTHER_HUB_FIX, UPDATE_LOCK_FIX, FileLocation, Source
from sparkwright.trust import bounds
from sparkwright.trust.names import is_outside

if TYPE_CHECKING:
    import hf_xet


MAX_PARALLEL_RANGES = 20
RANGE_BYTES = 3 * 2**20  # each range may be in memory three times, so 20 ranges stay below 300 MB
MIN_RANGES_FILE_BYTES = 5 * RANGE_BYTES  # smaller files are downloaded sequentially instead of in ranges
MAX_PARALLEL_FAILURES, MAX_RANGE_RETRIES = 3, 5  # hf_transfer's limits for each range
#: modes whose partial file is the beginning of the file; each can resume the other's
SEQUENTIAL_MODES = ("plain", "xet")
PARTIAL_FOLDER = ".cache/sparkwright/partial"  # reserved: a lock with a file below it is refused
MODE_FILE = ".cache/sparkwright/transfer"
#: partial files of Hugging Face's client
_HUB_CLIENT_FOLDER = ".cache/huggingface/download"
#: memory limit of a transfer process: hf_transfer plans all ranges of a file at once, whatever size a server claims
MAX_MEMORY_BYTES = {"plain": 2 * 2**30, "hf_transfer": 2 * 2**30, "xet": 4 * 2**30}
MIN_FILE_LIMIT_BYTES = 64 * 2**20  # enough for the clients' own files
STALL_MARGIN_S = 5.0
#: hf_xet's defaults use up to 6 GB, in memory shared with the GPU
_XET_SETTINGS = {
    "reconstruction.download_buffer_size": 256 * 10**6,
    "reconstruction.download_buffer_perfile_size": 64 * 10**6,
    "reconstruction.download_buffer_limit": 512 * 10**6,
    "reconstruction.min_prefetch_buffer": 64 * 10**6,
    "chunk_cache.size_bytes": 0,
    "telemetry.enabled": False,
}
#: a store token is renewed this long before it expires
MIN_ACCESS_VALIDITY_S = 60.0

_access_lock = threading.Lock()
#: access to the chunk store, by source
_access_by_source: dict[Source, StoreAccess] = {}


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The settings of a transfer, for all its files."""

    mode: str  #: plain, hf_transfer or xet
    retries: int  #: retries of an unanswered request before the attempt counts as failed
    #: seconds without data after which the runner aborts the transfer, in every mode
    stall_s: float = 0.0

    @property
    def max_silence_s(self) -> float:
        """Seconds without data after which a connection is closed: longer than the runner waits before it aborts."""
        return max(hub.MAX_SILENCE_S, self.stall_s + STALL_MARGIN_S)


def limit_process(files: Sequence[Mapping[str, Any]], mode: str) -> None:
    """Limit this process's memory, and the size of each file that it writes to that of the largest of `files`."""
    largest_bytes = max((int(file["size_bytes"]) for file in files), default=0)
    for kind, limit in (
        (resource.RLIMIT_FSIZE, max(largest_bytes, MIN_FILE_LIMIT_BYTES)),
        (resource.RLIMIT_DATA, MAX_MEMORY_BYTES[mode]),
    ):
        hard_limit = resource.getrlimit(kind)[1]
        soft_limit = limit if hard_limit == resource.RLIM_INFINITY else min(limit, hard_limit)
        resource.setrlimit(kind, (soft_limit, hard_limit))


def download_file(
    source: Source, file: Mapping[str, Any], folder: Path, settings: TransferSettings, *, discard_partial: bool = False
) -> None:
    """Download one file into a folder. A sequential transfer resumes the partial file of an earlier one.

    Args:
        file: the file's entry in spark.lock.
        discard_partial: do not resume the partial file, because the file's hash was wrong before.

    Raises:
        HubDown: A retry may help.
        Failed: A retry will not help; for example, the file has a different size on the hub.
    """
    partial_file, target = partial_path(folder, file), folder / file["path"]
    if discard_partial:
        partial_file.unlink(missing_ok=True)
    with hub.explain_errors(source):
        partial_file.parent.mkdir(parents=True, exist_ok=True)
        location = hub.locate_file(source, file, retries=settings.retries)
        if settings.mode == "hf_transfer" and file["size_bytes"] > MIN_RANGES_FILE_BYTES:
            _download_ranges(location, partial_file)
        elif settings.mode == "xet" and location.xet_hash:
            with _open_appending(partial_file) as out:
                _write_pieces(stream_content(source, location.xet_hash, file["size_bytes"], out.tell()), out, file)
        else:
            _download_sequential(location, partial_file, file, settings)
        if partial_file.stat().st_size != file["size_bytes"]:
            raise hub.HubDown(
                f"{file['path']} ended after {partial_file.stat().st_size} of {file['size_bytes']} bytes."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        partial_file.replace(target)


def partial_path(folder: Path, file: Mapping[str, Any]) -> Path:
    """Return the path of a file's partial download. The name contains the hash, so that revisions do not share it."""
    name = hashlib.sha256(file["path"].encode()).hexdigest()[:16]
    return folder / PARTIAL_FOLDER / f"{name}.{file['sha256'] or file['blob_id']}.incomplete"


def prepare_folder(folder: Path, mode: str) -> None:
    """Record the mode in a folder, and remove partial files that it cannot resume.

    A partial file of hf_transfer has holes: resuming it would result in a file of the right size with wrong bytes.
    """
    if mode not in SEQUENTIAL_MODES or not can_resume(folder):
        remove_leftovers(folder)
    mode_file = folder / MODE_FILE
    mode_file.parent.mkdir(parents=True, exist_ok=True)
    mode_file.write_text("sequential" if mode in SEQUENTIAL_MODES else mode)


def can_resume(folder: Path) -> bool:
    """Return True if the partial files in a folder are from a sequential mode."""
    mode_file = folder / MODE_FILE
    return mode_file.exists() and mode_file.read_text() == "sequential"


def remove_leftovers(folder: Path) -> None:
    """Remove the partial files in a folder, including those of Hugging Face's client. Skips links to other folders."""
    for subfolder in (PARTIAL_FOLDER, _HUB_CLIENT_FOLDER):
        if not is_outside(folder, folder / subfolder):
            for path in (folder / subfolder).rglob("*.incomplete"):
                path.unlink(missing_ok=True)


# -- the modes -------------------------------------------------------------------------------------------------------


def _download_ranges(location: FileLocation, partial_file: Path) -> None:
    import hf_transfer

    partial_file.unlink(missing_ok=True)
    hf_transfer.download(
        location.url,
        str(partial_file),
        MAX_PARALLEL_RANGES,
        RANGE_BYTES,
        parallel_failures=MAX_PARALLEL_FAILURES,
        max_retries=MAX_RANGE_RETRIES,
        headers=location.headers,
    )


def _download_sequential(
    location: FileLocation, partial_file: Path, file: Mapping[str, Any], settings: TransferSettings
) -> None:
    """Resume at the end of the partial file, or start again if the server ignores the range."""
    with _open_appending(partial_file) as out:
        offset = out.tell()
        if offset == file["size_bytes"]:
            return
        headers = {**location.headers, **({"Range": f"bytes={offset}-"} if offset else {})}
        with hub.open_stream(
            "GET", location.url, headers, retries=settings.retries, max_silence_s=settings.max_silence_s
        ) as response:
            if response.status >= 400:
                if response.status == 416:  # range not satisfiable: the partial file is wrong
                    out.truncate(0)
                raise hub.busy_error(f"the server of {file['path']} returned {response.status}", response)
            if offset and not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                out.seek(0)
                out.truncate()
            _write_pieces(response, out, file)


def _open_appending(path: Path) -> BinaryIO:
    """Open a file to append to it. Raises OSError for a symlink."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return open(os.open(path, flags, 0o644), "ab", buffering=0)


def _write_pieces(pieces: Iterable[bytes], out: BinaryIO, file: Mapping[str, Any]) -> None:
    """Append the received data. Raises Failed before the file exceeds its size in spark.lock."""
    remaining_bytes = file["size_bytes"] - out.tell()
    for piece in pieces:
        remaining_bytes -= len(piece)
        if remaining_bytes < 0:
            raise Failed(f"received more than the {file['size_bytes']} bytes of {file['path']}.", fix=UPDATE_LOCK_FIX)
        view = memoryview(piece)
        while view:
            view = view[out.write(view) :]


class SourceQueue:
    """Assigns each file to the address with the fewest bytes in transfer."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._bytes_in_transfer = dict.fromkeys(sources, 0)
        self._lock = threading.Lock()

    def take(self, size_bytes: int) -> Source:
        """Return the address for a file of this size."""
        with self._lock:
            least_busy_source = min(self._bytes_in_transfer, key=lambda source: self._bytes_in_transfer[source])
            self._bytes_in_transfer[least_busy_source] += size_bytes
            return least_busy_source

    def release(self, source: Source, size_bytes: int) -> None:
        """Record that the transfer of a file has ended."""
        with self._lock:
            if source in self._bytes_in_transfer:
                self._bytes_in_transfer[source] -= size_bytes

    def exclude(self, source: Source) -> bool:
        """Stop using an address, unless it is the last one. Returns True if it is excluded."""
        with self._lock:
            if len(self._bytes_in_transfer) > 1:
                self._bytes_in_transfer.pop(source, None)
            return source not in self._bytes_in_transfer


def bytes_by_address(files: Sequence[Mapping[str, Any]], url_by_path: Mapping[str, str]) -> dict[str, int]:
    """Return the number of bytes by address, from the URL that delivered (the last part of) each file."""
    sizes: dict[str, int] = {}
    for file in files:
        if url := url_by_path.get(file["path"]):
            address = urlsplit(url).hostname or url
            sizes[address] = sizes.get(address, 0) + int(file["size_bytes"])
    return dict(sorted(sizes.items()))


# -- the chunk store -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """URL and token of the chunk store."""

    url: str
    token: str
    expires_s: int  #: seconds since 1970


def stream_content(
    source: Source, xet_hash: str, size_bytes: int, start: int, end: int | None = None
) -> Iterator[bytes]:
    """Yield the content of a file in the chunk store, from byte `start` to before byte `end` (None for the file's end).

    Raises:
        Failed: The hub's response about the store is malformed.
        HubDown: A retry may help.
    """
    import hf_xet

    if start == size_bytes:
        return
    access = _get_access(source)
    connection = _session().new_download_stream_group(
        endpoint=access.url,
        token=access.token,
        token_expiry_unix_secs=access.expires_s,
        token_refresh_url=_refresh_url(source),  # on the hub, so that only the hub receives these headers
        token_refresh_headers=source.headers(),
    )
    stream = connection.download_stream(hf_xet.XetFileInfo(xet_hash, size_bytes), start, end or size_bytes)
    try:
        yield from stream
    finally:
        stream.cancel()


@functools.lru_cache(maxsize=1)
def _session() -> hf_xet.XetSession:
    import hf_xet

    return hf_xet.XetSession(hf_xet.XetConfig().with_config(_XET_SETTINGS))


def abort_transfers() -> None:
    """Abort all transfers from the store in this process. Later ones use a new session."""
    _session().sigint_abort()
    _session.cache_clear()


def _get_access(source: Source) -> StoreAccess:
    with _access_lock:
        access = _access_by_source.get(source)
        if access is None or access.expires_s < time.time() + MIN_ACCESS_VALIDITY_S:
            access = _access_by_source[source] = _parse_access(hub.fetch_bytes(source, _refresh_url(source)), source)
        return access


def _refresh_url(source: Source) -> str:
    return f"{source.url}/api/models/{source.id}/xet-read-token/{source.commit}"


def _parse_access(response: bytes, source: Source) -> StoreAccess:
    try:
        data = bounds.parse_bounded_json(response)
        url, token, expires_s = (data[key] for key in ("casUrl", "accessToken", "exp"))
    except (ValueError, TypeError, KeyError):
        url = token = expires_s = None
    if not (isinstance(url, str) and isinstance(token, str) and type(expires_s) is int and _is_http(url)):
        message = f"the hub {source.url} sent an invalid response about its chunk store."
        raise Failed(message, fix=f"Use `transfer: plain`. {OTHER_HUB_FIX}")
    return StoreAccess(url, token, expires_s)


def _is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https") and bool(hub.origin(url)[1])
    except ValueError:
        return False
