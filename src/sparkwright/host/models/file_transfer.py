"""The transfer of one file into a folder: sequentially, in parallel ranges, or from the hub's chunk store.

In any mode, no byte beyond the size in spark.lock is written, and the caller compares the hash. A killed sequential transfer
leaves the beginning of a file, and resumes there; ranges leave holes, so their partial files are removed.

The chunk store (Xet) is read through hf_xet. The hub reports a file's hash in the store (X-Xet-Hash) and issues a short-lived
token for it; the hub's own token goes to the hub alone. The protocol: https://huggingface.co/docs/xet.
"""

from __future__ import annotations

import contextlib
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


RANGES = 20
RANGE_BYTES = 3 * 2**20  # held in memory two or three times over: 20 x 3 MiB stay below 300 MB
LARGE_BYTES = 5 * RANGE_BYTES  # smaller files get a plain request, whatever the mode
PARALLEL_FAILURES, RANGE_RETRIES = 3, 5  # of hf_transfer, for each range
#: modes whose partial file is the beginning of the file, which either of them can resume
SEQUENTIAL_MODES = ("plain", "xet")
PARTIAL_FOLDER = ".cache/sparkwright/partial"  # no file of a model can be there
MODE_FILE = ".cache/sparkwright/transfer"
#: partial files of Hugging Face's own client
_HUB_CLIENT_FOLDER = ".cache/huggingface/download"
#: memory limit of a transfer process: hf_transfer plans all ranges of a file at once, whatever size a server claims
MEMORY_BYTES = {"plain": 2 * 2**30, "hf_transfer": 2 * 2**30, "xet": 4 * 2**30}
MIN_FILE_LIMIT_BYTES = 64 * 2**20  # the clients' own files
STALL_MARGIN_S = 5.0


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """The settings of a transfer, for all its files."""

    mode: str  #: plain, hf_transfer or xet
    retries: int  #: of a request without an answer, before the attempt counts as failed
    #: seconds without data after which the transfer is aborted; the runner enforces them in every mode
    stall_s: float = 0.0

    @property
    def silence_s(self) -> float:
        """Seconds without data after which a connection is given up, later than the runner would abort the transfer."""
        return max(hub.MAX_SILENCE_S, self.stall_s + STALL_MARGIN_S)


def limit_process(files: Sequence[Mapping[str, Any]], mode: str) -> None:
    """Limit this process: the size of any file to the longest of these, and its memory."""
    longest = max((int(file["size_bytes"]) for file in files), default=0)
    for kind, limit in (
        (resource.RLIMIT_FSIZE, max(longest, MIN_FILE_LIMIT_BYTES)),
        (resource.RLIMIT_DATA, MEMORY_BYTES[mode]),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def download_file(
    source: Source, file: Mapping[str, Any], folder: Path, settings: TransferSettings, *, discard_partial: bool = False
) -> None:
    """Download one file into a folder. A sequential transfer resumes the partial file of an earlier one.

    Args:
        file: its row of spark.lock; a hub that has it in another size is refused.
        discard_partial: the file had wrong bytes before, so its partial file is not resumed.

    Raises:
        HubDown: A retry may help.
        Failed: A retry will not help.
    """
    part, target = partial_path(folder, file), folder / file["path"]
    if discard_partial:
        part.unlink(missing_ok=True)
    with hub.explain_errors(source):
        part.parent.mkdir(parents=True, exist_ok=True)
        location = hub.locate_file(source, file, retries=settings.retries)
        if settings.mode == "hf_transfer" and file["size_bytes"] > LARGE_BYTES:
            _download_ranges(location, part)
        elif settings.mode == "xet" and location.xet_hash:
            with _open_appending(part) as out:
                _write_pieces(stream_content(source, location.xet_hash, file["size_bytes"], out.tell()), out, file)
        else:
            _download_sequential(location, part, file, settings)
        if part.stat().st_size != file["size_bytes"]:
            raise hub.HubDown(f"{file['path']} ended after {part.stat().st_size} of {file['size_bytes']} bytes.")
        target.parent.mkdir(parents=True, exist_ok=True)
        part.replace(target)


def partial_path(folder: Path, file: Mapping[str, Any]) -> Path:
    """Return the path of a partial file: its name contains the hash, so another revision uses another file."""
    name = hashlib.sha256(file["path"].encode()).hexdigest()[:16]
    return folder / PARTIAL_FOLDER / f"{name}.{file['sha256'] or file['blob_id']}.incomplete"


def prepare_folder(folder: Path, mode: str) -> None:
    """Remove the partial files in a folder unless this mode can resume them.

    One that hf_transfer left has holes: resuming it would give a file of the right size with wrong bytes, without an error.
    """
    if mode not in SEQUENTIAL_MODES or not can_resume(folder):
        remove_leftovers(folder)
    mode_file = folder / MODE_FILE
    mode_file.parent.mkdir(parents=True, exist_ok=True)
    mode_file.write_text("sequential" if mode in SEQUENTIAL_MODES else mode)


def can_resume(folder: Path) -> bool:
    """Return True if the partial files in a folder can be resumed: they have no holes."""
    mode_file = folder / MODE_FILE
    return mode_file.exists() and mode_file.read_text() == "sequential"


def remove_leftovers(folder: Path) -> None:
    """Remove the partial files in a folder, including Hugging Face's; not those that a link leads to outside."""
    for inner in (PARTIAL_FOLDER, _HUB_CLIENT_FOLDER):
        if not is_outside(folder, folder / inner):
            for path in (folder / inner).rglob("*.incomplete"):
                path.unlink(missing_ok=True)


# -- the modes -------------------------------------------------------------------------------------------------------


def _download_ranges(location: FileLocation, part: Path) -> None:
    import hf_transfer

    part.unlink(missing_ok=True)
    hf_transfer.download(
        location.url,
        str(part),
        RANGES,
        RANGE_BYTES,
        parallel_failures=PARALLEL_FAILURES,
        max_retries=RANGE_RETRIES,
        headers=location.headers,
    )


def _download_sequential(
    location: FileLocation, part: Path, file: Mapping[str, Any], settings: TransferSettings
) -> None:
    """Read from the end of the partial file; if the server ignores the range, start over."""
    with _open_appending(part) as out:
        offset = out.tell()
        if offset == file["size_bytes"]:
            return
        headers = {**location.headers, **({"Range": f"bytes={offset}-"} if offset else {})}
        with hub.open_stream(
            "GET", location.url, headers, retries=settings.retries, silence_s=settings.silence_s
        ) as answer:
            if answer.status >= 400:
                out.truncate(0)  # 416 among them
                raise hub.HubDown(f"the transfer was refused: {answer.status}.")
            if offset and not answer.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
                out.seek(0)
                out.truncate()
            _write_pieces(answer, out, file)


@contextlib.contextmanager
def _open_appending(part: Path) -> Iterator[BinaryIO]:
    """Open a partial file at its end. Raises OSError for a link, which would lead elsewhere."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(part, flags, 0o644), "ab", buffering=0) as out:
        yield out


def _write_pieces(pieces: Iterable[bytes], out: BinaryIO, file: Mapping[str, Any]) -> None:
    """Write the received data, and not a byte more than the file's size in spark.lock."""
    remaining = file["size_bytes"] - out.tell()
    for piece in pieces:
        remaining -= len(piece)
        if remaining < 0:
            raise Failed(f"received more than the {file['size_bytes']} bytes of {file['path']}.", fix=UPDATE_LOCK_FIX)
        view = memoryview(piece)
        while view:
            view = view[out.write(view) :]


class SourceQueue:
    """A scheduler that assigns each file to the address with the fewest bytes in transfer."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._bytes_in_transfer = dict.fromkeys(sources, 0)
        self._guard = threading.Lock()

    def take(self, size: int) -> Source:
        """Return the address for a file of this many bytes."""
        with self._guard:
            least_busy = min(self._bytes_in_transfer, key=lambda source: self._bytes_in_transfer[source])
            self._bytes_in_transfer[least_busy] += size
            return least_busy

    def release(self, source: Source, size: int) -> None:
        """Record that a file was transferred."""
        with self._guard:
            if source in self._bytes_in_transfer:
                self._bytes_in_transfer[source] -= size

    def exclude(self, source: Source) -> bool:
        """Stop using an address. Returns False if it is the last one, which stays: the caller decides about a retry."""
        with self._guard:
            if len(self._bytes_in_transfer) > 1:
                self._bytes_in_transfer.pop(source, None)
            return source not in self._bytes_in_transfer


def bytes_by_address(files: Sequence[Mapping[str, Any]], came_from: Mapping[str, str]) -> dict[str, int]:
    """Return the number of bytes that each address delivered.

    Args:
        came_from: the URL of each file, by path; of a file from two addresses, the last.
    """
    sizes: dict[str, int] = {}
    for file in files:
        if url := came_from.get(file["path"]):
            address = urlsplit(url).hostname or url
            sizes[address] = sizes.get(address, 0) + int(file["size_bytes"])
    return dict(sorted(sizes.items()))


#: the client's defaults use up to 6 GB, in memory shared with the GPU
_SETTINGS = {
    "reconstruction.download_buffer_size": 256 * 10**6,
    "reconstruction.download_buffer_perfile_size": 64 * 10**6,
    "reconstruction.download_buffer_limit": 512 * 10**6,
    "reconstruction.min_prefetch_buffer": 64 * 10**6,
    "chunk_cache.size_bytes": 0,
    "telemetry.enabled": False,
}
RENEW_BEFORE_S = 60.0  # a token is renewed once it has less than this left
_access_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Access to the store."""

    url: str
    token: str
    expires_s: int  #: seconds since 1970


def stream_content(source: Source, xet_hash: str, size: int, start: int, end: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file from an offset on, in order.

    Args:
        xet_hash: of the file, as reported by the hub.
        size: of the file, bytes.
        start: the first byte, from 0.
        end: the byte after the last; None for all of the file.

    Raises:
        Failed: The hub's answer about the store is malformed.
        HubDown: A retry may help.
    """
    import hf_xet

    if start == size:
        return
    stream = _open_group(source).download_stream(hf_xet.XetFileInfo(xet_hash, size), start, end or size)
    try:
        yield from stream
    finally:
        stream.cancel()


def _open_group(source: Source) -> Any:
    """Return a connection to the store. hf_xet requests a new token from the hub alone when one expires."""
    access = _get_access(source)
    return _session().new_download_stream_group(
        endpoint=access.url,
        token=access.token,
        token_expiry_unix_secs=access.expires_s,
        token_refresh_url=_refresh_url(source),
        token_refresh_headers=source.headers(),
    )


@functools.lru_cache(maxsize=1)
def _session() -> hf_xet.XetSession:
    import hf_xet

    return hf_xet.XetSession(hf_xet.XetConfig().with_config(_SETTINGS))


def abort_transfers() -> None:
    """End every transfer from the store in this process; later ones use a new connection."""
    _session().sigint_abort()
    _session.cache_clear()


_access_by_source: dict[Source, StoreAccess] = {}


def _get_access(source: Source) -> StoreAccess:
    with _access_lock:
        access = _access_by_source.get(source)
        if access is None or access.expires_s < time.time() + RENEW_BEFORE_S:
            access = _access_by_source[source] = _parse_access(hub.read_answer(source, _refresh_url(source)), source)
        return access


def _refresh_url(source: Source) -> str:
    return f"{source.url}/api/models/{source.id}/xet-read-token/{source.commit}"


def _parse_access(answer: bytes, source: Source) -> StoreAccess:
    """Return the access in the hub's answer. Raises Failed if the answer is malformed."""
    try:
        data = bounds.parse_bounded_json(answer)
        url, token, expires_s = (data[key] for key in ("casUrl", "accessToken", "exp"))
    except (ValueError, TypeError, KeyError):
        url = token = expires_s = None
    if not (isinstance(url, str) and isinstance(token, str) and type(expires_s) is int and _is_http(url)):
        message = f"the answer of the hub {source.url} about its chunk store is not valid."
        raise Failed(message, fix=f"Use `transfer: plain`. {OTHER_HUB_FIX}")
    return StoreAccess(url, token, expires_s)


def _is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https") and bool(hub.origin(url)[1])
    except ValueError:
        return False
