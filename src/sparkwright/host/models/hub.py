"""The protocol of a hub: URLs, short answers, locations of files, errors as sentences; bounded in bytes, time and redirects."""

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

from sparkwright.errors import Failed
from sparkwright.secret import Secret
from sparkwright.transport import http
from sparkwright.transport.connection import (
    ConnectFailed,
    Deadline,
    InvalidHeader,
    InvalidRequest,
    MinimumRate,
    TimedOut,
    TooLarge,
    TransportError,
    Untrusted,
)
from sparkwright.transport.http import Route
from sparkwright.trust.model_files import SHA256
from sparkwright.visible import one_line

#: limit of an answer read into memory: metadata, an error, a redirect. A model of 20,000 files is described in 8 MB
ANSWER_BYTES = 16 * 2**20
REDIRECTS = 10
SILENCE_S, ANSWER_S = 30.0, 120.0


#: of a busy hub, and of one that another request may find well
BUSY = frozenset((429, 500, 502, 503, 504))
PAUSE_S, ANSWER_RETRIES = 0.5, 2
ROUTE = Route(proxies=True)


def opened(
    method: str,
    url: str,
    headers: Mapping[str, str],
    *,
    retries: int = 0,
    connects: int | None = None,
    redirects: int = REDIRECTS,
    silence_s: float | None = None,
) -> http.Stream:
    """Return an answer once its head is there. A busy hub is asked again after 0.5, 1, 2 s, whatever Retry-After says.

    Args:
        headers: a token is sent to the URL's own origin only.
        retries: after an answer of 429, 500 and the like.
        connects: the same after a refused connection; None: as many.
        redirects: how many are followed; without any, a redirect is the answer.
        silence_s: the longest wait for the head, and for a byte of the body; None: SILENCE_S.

    Raises:
        TransportError: one of its kinds. Failed: a redirect too many.
    """
    most, wait_s = retries if connects is None else connects, SILENCE_S if silence_s is None else silence_s
    for n in itertools.count():
        try:
            found = http.open_stream(
                method,
                url,
                timeout_s=wait_s,
                rate=MinimumRate(1, wait_s),
                headers=headers,
                redirects=redirects,
                route=ROUTE,
            )
        except ConnectFailed:
            if n >= most:
                raise
        else:
            if redirects and found.status in http.REDIRECTED:
                found.close()
                raise Failed(f"the hub {url} {LOOP}.", fix=OTHER)
            if found.status not in BUSY or n >= retries:
                return found
            found.close()
        time.sleep(PAUSE_S * 2**n)
    raise AssertionError


# The protocol of a hub: URLs, short answers, the location of a file, and errors as sentences.
#
# It consists of four headers and two JSON documents, which huggingface_hub 2.4 reads in the same way; decision 40
# explains why that package is not part of the runtime. tests/host/models/test_hub.py compares the two.

CONFIG = "config.json"
#: headers of every download: the length must be the file's
IDENTITY = {"Accept-Encoding": "identity"}
_ETAG = re.compile(r"[A-Za-z0-9._-]{1,128}")


class HubDown(Failed):
    """The hub could not be reached, or a transfer broke off; a retry may help."""


class DiskFull(Failed):
    """The disk is full in the middle of a transfer."""


@dataclass(frozen=True, slots=True)
class Source:
    """A model at a commit, at a hub or at a peer that serves the same protocol."""

    url: str
    id: str
    commit: str
    token: Secret | None = None
    #: further addresses of the peer
    also: tuple[str, ...] = ()

    @property
    def each(self) -> list[Source]:
        """One source per address."""
        return [replace(self, url=url, also=()) for url in (self.url, *self.also)]

    def without(self, url: str) -> Source:
        """Return the source without an address, unless it is the only one."""
        left = [item for item in (self.url, *self.also) if item != url] or [self.url]
        return replace(self, url=left[0], also=tuple(left[1:]))

    def address(self, path: str) -> str:
        """Return the URL of one of its files."""
        return f"{self.url}/{self.id}/resolve/{self.commit}/{quote(path)}"

    def headers(self) -> dict[str, str]:
        """Return the headers for a request."""
        return {"Authorization": f"Bearer {self.token.reveal()}"} if self.token else {}


def answer(source: Source, address: str, *, first_bytes: int = 0) -> bytes:
    """Return the body of a short answer. Raises Failed, or HubDown if a retry may help.

    Args:
        first_bytes: only the beginning of a file; 0 for all of it.
    """
    part = {"Range": f"bytes=0-{first_bytes - 1}"} if first_bytes else {}
    with (
        explained(source),
        opened("GET", address, {**source.headers(), **part}, retries=ANSWER_RETRIES, connects=0) as found,
    ):
        refuse(found, source, address)
        found.connection.clock = Deadline(ANSWER_S)  # an occasional byte would keep it alive
        return found.read(ANSWER_BYTES)


@dataclass(frozen=True, slots=True)
class Located:
    """The location of a file, as reported by the hub."""

    url: str  #: of its bytes, at the hub or at the target of its redirect
    headers: dict[str, str]  #: with the token at the hub's own origin only
    xet_hash: str  #: of its content in the hub's chunk store; empty if it is not there


def located(source: Source, file: Mapping[str, Any], *, retries: int = 0) -> Located:
    """Request the location of a file from the hub. Redirects within the hub are followed; one that leaves it is the result.

    Args:
        file: its row of spark.lock.
        retries: for a hub that is busy or does not accept a connection.

    Raises:
        Failed: The hub has the file in another size than the lock, or redirects in a loop or to another scheme.
        HubDown: A retry may help.
    """
    url = source.address(file["path"])
    with explained(source):
        for _ in range(REDIRECTS):
            headers = {**source.headers(), **IDENTITY}
            with opened("HEAD", url, headers, retries=retries, redirects=0) as found:
                refuse(found, source, url)
                _refuse_other_file(found, file)
                xet = _as_hash(found.headers.get("X-Xet-Hash", ""))
            if not _leads_on(found):
                return Located(url, headers, xet)
            url = urljoin(url, found.headers["Location"])
            if origin(url) != origin(source.url):
                if urlsplit(url).scheme not in ("http", "https"):
                    break
                return Located(url, dict(IDENTITY), xet)
    raise Failed(f"the hub {source.url} {LOOP}.", fix=OTHER)


def _leads_on(found: http.Stream) -> bool:
    return found.status in http.REDIRECTED and "Location" in found.headers


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of a URL: a token goes to one origin alone. Raises ValueError for an invalid port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _refuse_other_file(answer: http.Stream, file: Mapping[str, Any]) -> None:
    """Raise Failed for a file whose size differs from the lock or whose ETag is malformed; both headers are optional."""
    length = None if _leads_on(answer) else answer.headers.get("Content-Length")
    size, etag = (
        answer.headers.get("X-Linked-Size") or length,
        answer.headers.get("X-Linked-ETag") or answer.headers.get("ETag"),
    )
    if etag is not None and not _ETAG.fullmatch(etag.removeprefix("W/").strip('"')):
        raise Failed(f"the hub's ETag of {file['path']} is not valid: '{one_line(etag, at_most=80)}'.", fix=FIX)
    if size is not None and size != str(file["size_bytes"]):
        shown = one_line(size, at_most=30)
        raise Failed(f"{file['path']} has {shown} bytes on the hub, {file['size_bytes']} in spark.lock.", fix=FIX)


def _as_hash(text: str) -> str:
    """Return a xet hash; empty for anything else: then the file is not in the chunk store."""
    return text if SHA256.fullmatch(text) else ""


def refuse(answer: http.Stream, source: Source, address: str) -> None:
    """Raise the error for a hub's refusal. Its X-Error-Code, as documented, tells gated, private and unknown apart."""
    if answer.status < 400:
        return
    code, id_, url = answer.headers.get("X-Error-Code", ""), source.id, source.url
    if code == "GatedRepo":
        fix = f"Accept its license at {url}/{id_}, then set a token (hosts/groups.yml, `secrets`)."
        raise Failed(f"{id_} is gated.", fix=fix)
    if code == "RevisionNotFound":
        raise Failed(f"{id_} has no revision {source.commit!r}.", fix="Check `model.revision` in the recipe.")
    if code == "EntryNotFound":
        path = one_line(urlsplit(address).path.rpartition("/resolve/")[2], at_most=300)
        message = f"a file of {id_} in spark.lock no longer exists: {path}."
        raise Failed(message, fix="Remove its entry from spark.lock.")
    if code == "RepoNotFound" or answer.status == 401:
        fix = "Check `model.id` in the recipe; a private model needs a token in `secrets`."
        raise Failed(f"the hub {url} has no model {id_}.", fix=fix)
    message = one_line(answer.headers.get("X-Error-Message", ""), at_most=300)
    raise HubDown(f"the hub {url} returned {answer.status} {message}".rstrip() + ".")


@contextmanager
def explained(source: Source) -> Iterator[None]:
    """Convert the exceptions of a transfer to sentences: HubDown if a retry may help, else Failed."""
    url = source.url
    try:
        yield
    except Failed:
        raise
    except (ConnectFailed, TimedOut) as error:
        raise HubDown(f"the hub {url} does not answer.", fix=_NETWORK) from error
    except TooLarge:
        raise Failed(f"the response exceeds {ANSWER_BYTES // 2**20} MiB.") from None
    except (InvalidHeader, Untrusted) as error:
        raise Failed(f"the hub {url} {error}.", fix=OTHER) from None
    except InvalidRequest:
        raise Failed(f"the hub {url} {LOOP}.", fix=OTHER) from None
    except TransportError as error:
        if str(error).startswith("redirects"):
            raise Failed(f"the hub {url} {LOOP}.", fix=OTHER) from None
        raise HubDown(f"the transfer from {url} was interrupted: it {error}.") from None
    except PermissionError as error:
        raise Failed(
            f"no permission to write {error.filename}.", fix="On the host, chown the directory to this user."
        ) from None
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFull(_FULL, fix=_FREE) from None
        if error.errno == errno.EFBIG:
            raise Failed(_LONGER, fix=OTHER) from None
        raise HubDown(f"the transfer from {url} was interrupted: {_short(error)}.") from None
    except Exception as error:
        causes = f"{error} {error.__cause__}"
        if "os error 28" in causes or "No space left" in causes:
            raise DiskFull(_FULL, fix=_FREE) from None
        if "os error 27" in causes:
            raise Failed(_LONGER, fix=OTHER) from None
        if type(error).__module__.startswith(("hf_transfer", "hf_xet", "builtins", "http")):
            raise HubDown(f"the transfer from {url} was interrupted: {_short(error)}.") from None
        raise


def _short(error: BaseException) -> str:
    """Return a server's error message in one line, shortened: it may be a whole page."""
    return one_line(str(error).strip().rstrip("."), at_most=300)


LOOP = "redirects in a loop, or to a URL that is not http(s)"
OTHER = "Use another hub (HF_ENDPOINT), or check for a proxy in between."
FIX = "`invoke lock --update` reads the branch again; HF_ENDPOINT selects another hub."
_NETWORK = "Check the host's network."
_LONGER = "a file is larger than spark.lock says."
_FULL = "the disk is full."
_FREE = "Free some space; complete files are kept."
