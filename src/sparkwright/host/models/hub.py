"""The protocol of a hub: URLs, short answers, locations of files, errors as sentences; bounded in bytes, time and redirects."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from sparkwright.errors import Failed
from sparkwright.host.output import within
from sparkwright.secret import Secret
from sparkwright.trust.model_files import SHA256
from sparkwright.visible import one_line

#: limit of an answer read into memory: metadata, an error, a redirect. A model of 20,000 files is described in 8 MB
ANSWER_BYTES = 16 * 2**20
REDIRECTS = 10
SILENCE_S, ANSWER_S = 30.0, 120.0


def patient(retries: int, *, connect: int | None = None) -> Retry:
    """Return the retry policy for a busy hub: pauses of 0.5, 1, 2 s, whatever Retry-After says.

    Args:
        retries: after an answer of 429, 500 and the like.
        connect: after a refused connection; None: as many.
    """
    return Retry(
        total=None,
        connect=retries if connect is None else connect,
        read=0,
        other=0,
        status=retries,
        status_forcelist=(429, 500, 502, 503, 504),
        backoff_factor=0.5,
        respect_retry_after_header=False,
        raise_on_status=False,
    )


def session(retries: Retry | int = 0) -> requests.Session:
    """Return a session whose answers are limited in size, except for files that are streamed to the disk."""
    session = requests.Session()
    session.max_redirects = REDIRECTS
    for scheme in ("http://", "https://"):
        session.mount(scheme, _Bounded(max_retries=retries))
    return session


def get(url: str, headers: Mapping[str, str]) -> requests.Response:
    """Request a short answer, with retries while the hub is busy. Raises requests.RequestException, Failed if it is too long."""
    headers = {**headers, "Accept-Encoding": "identity"}

    def ask() -> requests.Response:
        with session(patient(2, connect=0)) as http:
            return http.get(url, headers=headers, timeout=SILENCE_S)

    try:
        return within(ANSWER_S, ask)  # an occasional byte keeps each read alive: only a deadline ends that
    except TimeoutError as error:
        raise requests.Timeout(str(error)) from None


class _Bounded(HTTPAdapter):
    def send(
        self, request: requests.PreparedRequest, stream: bool = False, *args: Any, **kwargs: Any
    ) -> requests.Response:
        response = super().send(request, stream, *args, **kwargs)
        if not stream or response.is_redirect or not response.ok:
            response.raw = _AtMost(response.raw, ANSWER_BYTES)
        return response


class _AtMost:
    """A response body that raises an error after a number of bytes."""

    def __init__(self, raw: Any, at_most: int) -> None:
        self._raw = raw
        self._left = at_most

    def stream(self, amount: int, decode_content: bool | None = None) -> Iterator[bytes]:
        for data in self._raw.stream(amount, decode_content=decode_content):
            self._left -= len(data)
            if self._left < 0:
                self._raw.close()
                raise Failed(f"the response exceeds {ANSWER_BYTES // 2**20} MiB.")
            yield data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


# The protocol of a hub: URLs, short answers, the location of a file, and errors as sentences.
#
# It consists of four headers and two JSON documents, which huggingface_hub 2.4 reads in the same way; decision 40
# explains why that package is not part of the runtime. tests/modules/test_hub_protocol.py compares the two.

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

    with explained(source):
        part = {"Range": f"bytes=0-{first_bytes - 1}"} if first_bytes else {}
        response = get(address, {**source.headers(), **part})
        raise_for_status(response, source)
        return response.content


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
    with explained(source), session(patient(retries)) as client:
        for _ in range(REDIRECTS):
            headers = {**source.headers(), **IDENTITY}
            answer = client.head(url, headers=headers, allow_redirects=False, timeout=SILENCE_S)
            raise_for_status(answer, source)
            _refuse_other_file(answer, file)
            xet = _as_hash(answer.headers.get("X-Xet-Hash", ""))
            if not answer.is_redirect:
                return Located(url, headers, xet)
            url = urljoin(url, answer.headers["Location"])
            if origin(url) != origin(source.url):
                if urlsplit(url).scheme not in ("http", "https"):
                    break
                return Located(url, dict(IDENTITY), xet)
    raise Failed(f"the hub {source.url} redirects in a loop, or to a URL that is not http(s).", fix=OTHER)


def origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of a URL: a token goes to one origin alone. Raises ValueError for an invalid port."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _refuse_other_file(answer: requests.Response, file: Mapping[str, Any]) -> None:
    """Raise Failed for a file whose size differs from the lock or whose ETag is malformed; both headers are optional."""
    length = None if answer.is_redirect else answer.headers.get("Content-Length")
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


def raise_for_status(answer: requests.Response, source: Source) -> None:
    """Raise the error for a hub's refusal. Its X-Error-Code, as documented, tells gated, private and unknown apart."""
    if answer.status_code < 400:
        return
    code, id_, url = answer.headers.get("X-Error-Code", ""), source.id, source.url
    if code == "GatedRepo":
        fix = f"Accept its license at {url}/{id_}, then set a token (hosts/groups.yml, `secrets`)."
        raise Failed(f"{id_} is gated.", fix=fix)
    if code == "RevisionNotFound":
        raise Failed(f"{id_} has no revision {source.commit!r}.", fix="Check `model.revision` in the recipe.")
    if code == "EntryNotFound":
        path = one_line(urlsplit(answer.url).path.rpartition("/resolve/")[2], at_most=300)
        message = f"a file of {id_} in spark.lock no longer exists: {path}."
        raise Failed(message, fix="Remove its entry from spark.lock.")
    if code == "RepoNotFound" or answer.status_code == 401:
        fix = "Check `model.id` in the recipe; a private model needs a token in `secrets`."
        raise Failed(f"the hub {url} has no model {id_}.", fix=fix)
    message = one_line(answer.headers.get("X-Error-Message") or answer.reason or "", at_most=300)
    raise HubDown(f"the hub {url} returned {answer.status_code} {message}".rstrip() + ".")


@contextmanager
def explained(source: Source) -> Iterator[None]:
    """Convert the exceptions of a transfer to sentences: HubDown if a retry may help, else Failed."""
    import requests
    from urllib3.exceptions import HTTPError

    url = source.url
    try:
        yield
    except Failed:
        raise
    except (requests.ConnectionError, requests.Timeout) as error:
        raise HubDown(f"the hub {url} does not answer.", fix=_NETWORK) from error
    except (
        requests.TooManyRedirects,
        requests.exceptions.InvalidSchema,
        requests.exceptions.InvalidURL,
        RecursionError,
    ):
        raise Failed(f"the hub {url} redirects in a loop, or to a URL that is not http(s).", fix=OTHER) from None
    except (requests.RequestException, HTTPError) as error:
        raise HubDown(f"the transfer from {url} was interrupted: {type(error).__name__}.") from None
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


OTHER = "Use another hub (HF_ENDPOINT), or check for a proxy in between."
FIX = "`invoke lock --update` reads the branch again; HF_ENDPOINT selects another hub."
_NETWORK = "Check the host's network."
_LONGER = "a file is larger than spark.lock says."
_FULL = "the disk is full."
_FREE = "Free some space; complete files are kept."
