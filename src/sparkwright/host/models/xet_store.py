"""The hub's chunk store for large files (Xet), read through hf_xet.

The hub reports a file's hash in the store (X-Xet-Hash) and issues a short-lived token for it; the hub's own token goes to the hub
alone. The protocol: https://huggingface.co/docs/xet.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkwright.errors import Failed
from sparkwright.host.models import hub
from sparkwright.host.models.hub import OTHER, Source
from sparkwright.trust import bounds

if TYPE_CHECKING:
    import hf_xet

#: the client's defaults use up to 6 GB, in memory shared with the GPU
_SETTINGS = {
    "reconstruction.download_buffer_size": 256 * 10**6,
    "reconstruction.download_buffer_perfile_size": 64 * 10**6,
    "reconstruction.download_buffer_limit": 512 * 10**6,
    "reconstruction.min_prefetch_buffer": 64 * 10**6,
    "chunk_cache.size_bytes": 0,
    "telemetry.enabled": False,
}
EXPIRES_S = 60.0  # a token is renewed once it has less than this left
_guard = threading.Lock()


@dataclass(frozen=True, slots=True)
class Access:
    """Access to the store."""

    url: str
    token: str
    expires_s: int  #: seconds since 1970


def content(source: Source, xet_hash: str, size: int, start: int, end: int | None = None) -> Iterator[bytes]:
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
    stream = _group(source).download_stream(hf_xet.XetFileInfo(xet_hash, size), start, end or size)
    try:
        yield from stream
    finally:
        stream.cancel()


def _group(source: Source) -> Any:
    """Return a connection to the store. hf_xet requests a new token from the hub alone when one expires."""
    access = _access(source)
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


def abandon() -> None:
    """End every transfer from the store in this process; later ones use a new connection."""
    _session().sigint_abort()
    _session.cache_clear()


_known: dict[Source, Access] = {}


def _access(source: Source) -> Access:
    with _guard:
        known = _known.get(source)
        if known is None or known.expires_s < time.time() + EXPIRES_S:
            known = _known[source] = _read(hub.answer(source, _refresh_url(source)), source)
        return known


def _refresh_url(source: Source) -> str:
    return f"{source.url}/api/models/{source.id}/xet-read-token/{source.commit}"


def _read(answer: bytes, source: Source) -> Access:
    """Return the access in the hub's answer. Raises Failed if the answer is malformed."""
    try:
        found = bounds.parsed(answer)
        url, token, expires_s = (found[key] for key in ("casUrl", "accessToken", "exp"))
    except (ValueError, TypeError, KeyError):
        url = token = expires_s = None
    if not (isinstance(url, str) and isinstance(token, str) and type(expires_s) is int and _is_http(url)):
        message = f"the answer of the hub {source.url} about its chunk store is not valid."
        raise Failed(message, fix=f"Use `transfer: plain`. {OTHER}")
    return Access(url, token, expires_s)


def _is_http(url: str) -> bool:
    try:
        return urlsplit(url).scheme in ("http", "https") and bool(hub.origin(url)[1])
    except ValueError:
        return False
