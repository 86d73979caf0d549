"""huggingface_hub held to the lock while it fetches a file: what a server says of its size and place is compared before use.

By itself it writes as many bytes as come, and makes part of a file's name of the server's ETag.
"""

from __future__ import annotations

import dataclasses
import re
import resource
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from sparkwright.errors import Failed
from sparkwright.visible import one_line

ETAG = re.compile(r"[A-Za-z0-9._-]{1,128}")
#: of one process that transfers: hf_transfer plans every range of a file at once, however long a server says it is
MEMORY_BYTES = {"plain": 2 * 2**30, "hf_transfer": 2 * 2**30, "xet": 16 * 2**30}
OWN_FILES_BYTES = 64 * 2**20  # the client's own: logs, notes

_fix = "`invoke lock --update` reads the branch again; HF_ENDPOINT selects another hub."
#: the file, and the URL of the hub that the token is for
_wanted: ContextVar[tuple[Mapping[str, Any], str]] = ContextVar("wanted")


def bound_process(files: Sequence[Mapping[str, Any]], mode: str) -> None:
    """No file that this process writes gets longer than the longest of these, and its memory is bounded."""
    longest = max((int(file["size_bytes"]) for file in files), default=0)
    for kind, limit in (
        (resource.RLIMIT_FSIZE, max(longest, OWN_FILES_BYTES)),
        (resource.RLIMIT_DATA, MEMORY_BYTES[mode]),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


@contextmanager
def wanted(file: Mapping[str, Any], url: str) -> Iterator[None]:
    """What is fetched meanwhile, by this thread, is this file of spark.lock. url: of the hub that the token is for."""
    token = _wanted.set((file, url))
    try:
        yield
    finally:
        _wanted.reset(token)


def hold() -> None:
    """From now on, in this process, huggingface_hub asks here."""
    from huggingface_hub import file_download

    module = vars(file_download)
    if module["http_get"] is _get:
        return
    _originals.update(get=module["http_get"], metadata=module["get_hf_file_metadata"])
    module.update(http_get=_get, get_hf_file_metadata=_metadata)


_originals: dict[str, Any] = {}


def _metadata(*args: Any, **kwargs: Any) -> Any:
    """What the server says of a file, when it may be the one that is wanted."""
    from huggingface_hub import constants

    (file, _), found = _wanted.get(), _originals["metadata"](*args, **kwargs)
    if found.etag is not None and not ETAG.fullmatch(found.etag):
        raise Failed(f"the hub's ETag of {file['path']} is not valid: '{one_line(found.etag, at_most=80)}'.", fix=_fix)
    if found.size is not None and found.size != file["size_bytes"]:
        message = f"{file['path']} has {found.size} bytes on the hub, {file['size_bytes']} in spark.lock."
        raise Failed(message, fix=_fix)
    # with xet's address huggingface_hub would keep the token for the place that the file is redirected to
    return dataclasses.replace(found, xet_file_data=None) if constants.HF_HUB_DISABLE_XET else found


def _get(url: str, temp_file: BinaryIO, headers: Mapping[str, str] | None = None, **kwargs: Any) -> None:
    """huggingface_hub compares host and port only, and would send the token from https on to http."""
    file, hub = _wanted.get()
    own = urlsplit(url)[:2] == urlsplit(hub)[:2]  # scheme and host
    sent = {name: text for name, text in (headers or {}).items() if own or name.lower() != "authorization"}
    _originals["get"](url, _AtMost(temp_file, file), headers=sent, **kwargs)


class _AtMost:
    """A file that takes no byte more than spark.lock says it has."""

    def __init__(self, file: Any, locked: Mapping[str, Any]) -> None:
        self._inner = file
        self._locked = locked

    def write(self, data: bytes) -> int:
        if self._inner.tell() + len(data) > self._locked["size_bytes"]:
            raise Failed(
                f"received more than the {self._locked['size_bytes']} bytes of {self._locked['path']}.", fix=_fix
            )
        return int(self._inner.write(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
