"""A client for the protocol of a model hub: URLs, short responses, file locations, and readable errors.

Responses are limited in bytes, time and redirects. The protocol consists of a few headers (X-Linked-Size, X-Linked-ETag,
X-Error-Code ...) and two JSON documents, which huggingface_hub 2.4 reads in the same way; decision 40 explains why that
package is not part of the runtime. tests/host/models/test_hub.py compares the two.
"""

from __future__ import annotations

import errno
import itertools
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from sparkwright import units
from sparkwright.errors import Failed
from sparkwright.secret import Secret
from sparkwright.transport import http
from sparkwright.transport.connection import (
    BadRedirect,
    ConnectFailed,
    Deadline,
    InvalidHeader,
    InvalidRequest,
    MinimumRate,
    ProxyFailed,
    TimedOut,
    TooLarge,
    TransportError,
    Untrusted,
)
from sparkwright.transport.http import Route
from sparkwright.trust.model_files import SHA256
from sparkwright.trust.names import COMMIT
from sparkwright.visible import one_line

#: maximum size of a response read into memory; the metadata of a model with 20,000 files is 8 MB
MAX_ANSWER_BYTES = 16 * 2**20
MAX_REDIRECTS = 10
#: maximum time without data
MAX_SILENCE_S = 30.0
#: time limit for a complete response read into memory
RESPONSE_TIMEOUT_S = 120.0
#: HTTP statuses after which a retry may help
BUSY_STATUSES = frozenset((429, 500, 502, 503, 504))
RETRY_PAUSE_S, ANSWER_RETRIES = 0.5, 2
#: maximum pause that a busy hub may request; Hugging Face's limits are renewed every 5 min
MAX_REQUESTED_PAUSE_S = 360.0
ROUTE = Route(proxies=True)
CONFIG_FILE = "config.json"
#: headers of every download, because the length of the response must be that of the file
IDENTITY_HEADERS = {"Accept-Encoding": "identity"}
_ETAG_PATTERN = re.compile(r"[A-Za-z0-9._-]{1,128}")

REDIRECT_LOOP_CLAUSE = "redirects in a loop, or to a URL that is not http(s)"
OTHER_HUB_FIX = "Use another hub (HF_ENDPOINT), or check for a proxy in between."
TOKEN_HINT = "a token, such as the secret HF_TOKEN (hosts/groups.yml, `secrets`)"
UPDATE_LOCK_FIX = "`invoke lock --update` reads the branch again; HF_ENDPOINT selects another hub."
GONE_COMMIT_FIX = (
    "`invoke lock --update` reads the branch again; `invoke models.copy` copies the files from another host."
)
_NETWORK_FIX = "Check the host's network."
_CLOCK_FIX = "Check the host's clock (`invoke doctor`), then the hub's certificate."
_PROXY_FIX = "Check HTTP_PROXY, HTTPS_PROXY and NO_PROXY under `env` and `secrets` of the host, and in its environment."
_FILE_TOO_LARGE_MESSAGE = "a file is larger than its size in spark.lock."
_DISK_FULL_MESSAGE = "the disk is full."
_DISK_FULL_FIX = "Free some space; complete files are kept."


class HubDown(Failed):
    """The hub could not be reached, or a transfer broke off; a retry may help.

    Args:
        pause_s: pause that the hub requests before a retry; 0.0 if it requests none.
    """

    def __init__(self, message: str, *, fix: str = "", pause_s: float = 0.0) -> None:
        super().__init__(message, fix=fix)
        self.pause_s = pause_s

    @property
    def is_final(self) -> bool:
        """True if the hub requests a longer pause than a run may make."""
        return self.pause_s > MAX_REQUESTED_PAUSE_S


class DiskFull(Failed):
    """The disk became full during a transfer."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model at a commit, on a hub or a peer that serves the same protocol."""

    url: str
    id: str
    commit: str
    token: Secret | None = None
    #: further addresses of the peer
    other_urls: tuple[str, ...] = ()
    #: True for a peer, with which no proxy is used
    is_peer: bool = False

    @property
    def single_address_sources(self) -> list[Source]:
        """One source per address."""
        return [replace(self, url=url, other_urls=()) for url in (self.url, *self.other_urls)]

    def without_address(self, url: str) -> Source:
        """Return the source without the address `url`, unless that is its only one."""
        remaining_urls = [address for address in (self.url, *self.other_urls) if address != url] or [self.url]
        return replace(self, url=remaining_urls[0], other_urls=tuple(remaining_urls[1:]))

    def file_url(self, path: str) -> str:
        """Return the URL of one of the model's files."""
        return f"{self.url}/{self.id}/resolve/{self.commit}/{quote(path)}"

    def headers(self) -> dict[str, str]:
        """Return the headers that authorize a request; empty without a token."""
        return {"Authorization": f"Bearer {self.token.reveal()}"} if self.token else {}


def open_stream(
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    retries: int = 0,
    connect_retries: int | None = None,
    max_redirects: int = MAX_REDIRECTS,
    max_silence_s: float | None = None,
) -> http.Stream:
    """Send a request and return the response once its headers have arrived.

    Retries after 0.5, 1, 2 ... s. The response of a server that requests a longer pause is returned.

    Args:
        headers: headers of the request; a token in them is sent only to the URL's own origin.
        retries: number of retries after a status of BUSY_STATUSES.
        connect_retries: number of retries after a failed connection; None for the same as `retries`.
        max_redirects: maximum number of redirects; with 0, a redirect is returned as the response.
        max_silence_s: maximum wait for the headers, and for each byte of the body; None for MAX_SILENCE_S.

    Raises:
        TransportError: There was no valid response.
        Failed: There were too many redirects.
    """
    max_connect_retries = retries if connect_retries is None else connect_retries
    max_silence_s = MAX_SILENCE_S if max_silence_s is None else max_silence_s
    for n in itertools.count():
        try:
            stream = http.open_stream(
                method,
                url,
                timeout_s=max_silence_s,
                rate=MinimumRate(1, max_silence_s),
                headers=headers,
                max_redirects=max_redirects,
                route=ROUTE,
            )
        except ConnectFailed:
            if n >= max_connect_retries:
                raise
        else:
            if max_redirects and stream.status in http.REDIRECT_STATUSES:
                stream.close()
                raise Failed(f"the hub {url} {REDIRECT_LOOP_CLAUSE}.", fix=OTHER_HUB_FIX)
            if stream.status not in BUSY_STATUSES or n >= retries or requested_pause_s(stream) > RETRY_PAUSE_S * 2**n:
                return stream
            stream.close()
        time.sleep(RETRY_PAUSE_S * 2**n)
    raise AssertionError


def requested_pause_s(response: http.Stream) -> float:
    """Return the pause in seconds that a busy server requests before a retry; 0.0 if it requests none."""
    return http.parse_requested_pause(response.headers) if response.status in BUSY_STATUSES else 0.0


def fetch_bytes(source: Source, url: str, *, first_bytes: int = 0) -> bytes:
    """Return the body of a response of at most MAX_ANSWER_BYTES. Raises Failed, or HubDown if a retry may help.

    Args:
        first_bytes: number of bytes to read from the beginning of a file; 0 for all.
    """
    headers = {**source.headers(), **({"Range": f"bytes=0-{first_bytes - 1}"} if first_bytes else {})}
    with (
        explain_errors(source),
        open_stream("GET", url, headers, retries=ANSWER_RETRIES, connect_retries=0) as stream,
    ):
        raise_for_status(stream, source, url)
        # the minimum rate alone accepts one byte now and then
        stream.connection.time_limit = Deadline(RESPONSE_TIMEOUT_S)
        return stream.read(MAX_ANSWER_BYTES)


@dataclass(frozen=True, slots=True)
class FileLocation:
    """The location of a file, as reported by the hub."""

    url: str  #: URL of the content, on the hub or where the hub redirects to
    headers: dict[str, str]  #: headers for that URL; they contain the token only if it is on the hub's own origin
    xet_hash: str  #: the file's hash in the hub's chunk store; empty if it is not in the store


def locate_file(source: Source, file: Mapping[str, Any], *, retries: int = 0) -> FileLocation:
    """Request the location of a file from the hub.

    Follows redirects within the hub; a redirect to another origin is returned as the location.

    Args:
        file: the file's entry in spark.lock.
        retries: number of retries if the hub is busy or the connection fails.

    Raises:
        Failed: The file's size differs from that in the lock, or the hub redirects in a loop or to another scheme.
        HubDown: A retry may help.
    """
    url = source.file_url(file["path"])
    with explain_errors(source):
        for _ in range(MAX_REDIRECTS):
            headers = {**source.headers(), **IDENTITY_HEADERS}
            with open_stream("HEAD", url, headers, retries=retries, max_redirects=0) as stream:
                raise_for_status(stream, source, url)
                _check_file_headers(stream, file)
                xet_hash = stream.headers.get("X-Xet-Hash", "")
                xet_hash = xet_hash if SHA256.fullmatch(xet_hash) else ""
            if not _is_redirect(stream):
                return FileLocation(url, headers, xet_hash)
            url = urljoin(url, stream.headers["Location"])
            if origin(url) != origin(source.url):
                if urlsplit(url).scheme not in ("http", "https"):
                    break
                return FileLocation(url, dict(IDENTITY_HEADERS), xet_hash)
    raise Failed(f"the hub {source.url} {REDIRECT_LOOP_CLAUSE}.", fix=OTHER_HUB_FIX)


def _is_redirect(stream: http.Stream) -> bool:
    return stream.status in http.REDIRECT_STATUSES and "Location" in stream.headers


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of a URL. Raises ValueError for an invalid port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _check_file_headers(response: http.Stream, file: Mapping[str, Any]) -> None:
    """Raise Failed if the size differs from that in the lock, or the ETag is malformed; both headers are optional."""
    headers = response.headers
    size = headers.get("X-Linked-Size") or (None if _is_redirect(response) else headers.get("Content-Length"))
    etag = headers.get("X-Linked-ETag") or headers.get("ETag")
    if etag is not None and not _ETAG_PATTERN.fullmatch(etag.removeprefix("W/").strip('"')):
        message = f"the hub's ETag for {file['path']} is invalid: '{one_line(etag, max_chars=80)}'."
        raise Failed(message, fix=UPDATE_LOCK_FIX)
    if size is not None and size != str(file["size_bytes"]):
        sizes = f"{one_line(size, max_chars=30)} bytes on the hub, {file['size_bytes']} in spark.lock"
        raise Failed(f"{file['path']} has {sizes}.", fix=UPDATE_LOCK_FIX)


def raise_for_status(response: http.Stream, source: Source, url: str) -> None:
    """Raise the error for a response with an error status. The codes in X-Error-Code are those that the hub documents."""
    if response.status < 400:
        return
    code, id_, hub_url = response.headers.get("X-Error-Code", ""), source.id, source.url
    if code == "GatedRepo":
        next_step = " with the token's account" if source.token else f", then set {TOKEN_HINT}"
        raise Failed(f"{id_} is gated.", fix=f"Accept its license at {hub_url}/{id_}{next_step}.")
    if code == "RevisionNotFound":
        fix = GONE_COMMIT_FIX if COMMIT.fullmatch(source.commit) else "Check `model.revision` in the recipe."
        raise Failed(f"{id_} has no revision {source.commit!r}.", fix=fix)
    if code == "EntryNotFound":
        path = one_line(urlsplit(url).path.rpartition("/resolve/")[2], max_chars=300)
        message = f"a file of {id_} in spark.lock no longer exists: {path}."
        raise Failed(message, fix="Remove its entry from spark.lock.")
    message = one_line(response.headers.get("X-Error-Message", ""), max_chars=300).rstrip(".")
    if response.status == 401 and source.token and not code:
        fix = "Replace the secret HF_TOKEN (hosts/groups.yml, `secrets`), or remove it if the model is public."
        raise Failed(f"the hub {hub_url} does not accept the token{f': {message}' if message else ''}.", fix=fix)
    if code == "RepoNotFound" or response.status == 401:
        fix = f"Check `model.id` in the recipe; a private model needs {TOKEN_HINT}."
        raise Failed(f"the hub {hub_url} has no model {id_}.", fix=fix)
    fix = (
        "Check the permissions of the secret HF_TOKEN (hosts/groups.yml, `secrets`)." if response.status == 403 else ""
    )
    if response.status == 429 and not source.token:
        fix = f"The limit is higher with {TOKEN_HINT}."
    raise busy_error(f"the hub {hub_url} returned {response.status} {message}".rstrip(), response, fix=fix)


def busy_error(message: str, response: http.Stream, *, fix: str = "") -> HubDown:
    """Return the error for a response with an error status. It contains the requested pause, if that is too long.

    Args:
        message: the message without its period.
    """
    error = HubDown(f"{message}.", fix=fix, pause_s=requested_pause_s(response))
    if error.is_final:
        pause_text = units.format_rough_duration(error.pause_s)
        fix = f"Run the command again after that. {fix}".rstrip()
        return HubDown(f"{message} and requests a pause of {pause_text}.", fix=fix, pause_s=error.pause_s)
    return error


@contextmanager
def explain_errors(source: Source) -> Iterator[None]:
    """Convert the exceptions of a transfer to readable ones: HubDown if a retry may help, else Failed."""
    url = source.url
    try:
        yield
    except Failed:
        raise
    except ProxyFailed as error:
        raise (Failed if error.is_final else HubDown)(f"the hub {url} {error}.", fix=_PROXY_FIX) from None
    except (ConnectFailed, TimedOut) as error:
        raise HubDown(f"the hub {url} does not answer.", fix=_NETWORK_FIX) from error
    except TooLarge:
        raise Failed(f"the response exceeds {MAX_ANSWER_BYTES // 2**20} MiB.") from None
    except (InvalidHeader, Untrusted) as error:
        depends_on_clock = isinstance(error, Untrusted) and error.depends_on_clock
        raise Failed(f"the hub {url} {error}.", fix=_CLOCK_FIX if depends_on_clock else OTHER_HUB_FIX) from None
    except (BadRedirect, InvalidRequest):
        raise Failed(f"the hub {url} {REDIRECT_LOOP_CLAUSE}.", fix=OTHER_HUB_FIX) from None
    except TransportError as error:
        raise HubDown(f"the transfer from {url} was interrupted: it {error}.") from None
    except PermissionError as error:
        fix = "On the host, chown the directory to this user."
        raise Failed(f"no permission to write {error.filename}.", fix=fix) from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(_DISK_FULL_MESSAGE, fix=_DISK_FULL_FIX) from None
        if error.errno == errno.EFBIG:
            raise Failed(_FILE_TOO_LARGE_MESSAGE, fix=OTHER_HUB_FIX) from None
        raise HubDown(f"the transfer from {url} was interrupted: {_shorten_error(error)}.") from None
    except Exception as error:
        cause_text = f"{error} {error.__cause__}"
        if "os error 28" in cause_text or "No space left" in cause_text:
            raise DiskFull(_DISK_FULL_MESSAGE, fix=_DISK_FULL_FIX) from None
        if "os error 27" in cause_text:
            raise Failed(_FILE_TOO_LARGE_MESSAGE, fix=OTHER_HUB_FIX) from None
        if type(error).__module__.startswith(("hf_transfer", "hf_xet", "builtins", "http")):
            raise HubDown(f"the transfer from {url} was interrupted: {_shorten_error(error)}.") from None
        raise


def _shorten_error(error: BaseException) -> str:
    """Return an error as one short line; a server's message may be a whole page."""
    return one_line(str(error).strip().rstrip("."), max_chars=300)
