"""GET from a registry: bounded in bytes, time and redirects, and with a login that goes to the registry and its own realm only.

Source: the OCI distribution specification 1.1; tokens as Docker's registry token authentication describes them. Credentials
are docker's own: config.json with its credential helpers, of the user who runs this.
"""

from __future__ import annotations

import functools
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin, urlsplit

from sparkwright.errors import Failed
from sparkwright.host.images import registry_errors
from sparkwright.host.within import within
from sparkwright.trust import bounds
from sparkwright.trust.image_name import DOCKER_HUB, Name
from sparkwright.trust.redact import Redactor
from sparkwright.trust.shapes import checked, optional
from sparkwright.visible import one_line

if TYPE_CHECKING:
    import requests

SILENCE_S, ANSWER_S = 20, 60  # for the next bytes, and for all of them
HELPER_S = 30.0  # a program of the user's, which may ask for a PIN that nobody gives
REDIRECTS = 5
HUB_HOST = "registry-1.docker.io"
HUB_LOGIN = "https://index.docker.io/v1/"
LARGEST_TOKEN_BYTES = 64 * 2**10
LARGEST_ERROR_BYTES = 64 * 2**10
#: second level names under which strangers register: `a.co.uk` and `b.co.uk` have nothing in common
_SHARED = re.compile(r"(?:co|com|net|org|gov|edu|ac)\.[a-z]{2}")


@dataclass
class Http:
    """The HTTP side of one registry. insecure: the engine may speak plain HTTP with it."""

    name: Name
    insecure: bool = False
    _token: str = ""
    _base: str = ""
    _given: list[str] = field(default_factory=list)

    def get(self, path: str, *, accept: str, at_most: int) -> bytes:
        """The body at a path below the image's repository. Raises RegistryDown, NotThere or Failed; at_most: bytes."""
        import requests

        try:
            url = f"{self._reached()}/v2/{self.name.path}/{path}"
            answer = self._send(url, accept)
            if answer.status_code == 401:
                self._log_in(answer.headers.get("WWW-Authenticate", ""))
                answer = self._send(url, accept)
            if answer.status_code != 200:
                raise self._refusal(answer)
            return self._body(answer, at_most)
        except requests.RequestException as error:
            raise registry_errors.explain(self.name.asked, f"timeout ({type(error).__name__})") from None
        except ValueError as error:  # an address that urllib can't take apart
            raise Failed(f"the registry {self.name.registry} returned an invalid URL: {error}.") from None

    @functools.cached_property
    def _session(self) -> requests.Session:
        import requests

        return requests.Session()

    def _reached(self) -> str:
        """https; for a registry that the engine may reach without TLS, http where https does not answer."""
        import requests

        if self._base:
            return self._base
        host = HUB_HOST if self.name.registry == DOCKER_HUB else self.name.registry
        self._base = f"https://{host}"
        if self.insecure:
            try:
                self._one(f"https://{host}/v2/", {}).close()
            except requests.RequestException:
                self._base = f"http://{host}"
        return self._base

    def _send(self, url: str, accept: str) -> requests.Response:
        """GET, following redirects: a store for blobs is often another host. The login stays with the registry."""
        for _ in range(REDIRECTS + 1):
            own = urlsplit(url)[:2] == urlsplit(self._base)[:2]  # scheme and host
            headers = {"Accept": accept, **({"Authorization": self._token} if own and self._token else {})}
            answer = self._one(url, headers)
            if answer.status_code not in (301, 302, 303, 307, 308):
                return answer
            answer.close()
            url = urljoin(url, answer.headers.get("Location", ""))
            self._refuse_plain(url, "redirects to")
        raise Failed(f"the registry {self.name.registry} redirects more than {REDIRECTS} times.")

    def _one(self, url: str, headers: dict[str, str], **given: Any) -> requests.Response:
        secure = not (self.insecure and urlsplit(url).netloc == self.name.registry)
        return self._session.get(
            url, headers=headers, timeout=SILENCE_S, stream=True, allow_redirects=False, verify=secure, **given
        )

    def _refuse_plain(self, url: str, what: str) -> None:
        """Raises Failed for an address that is neither https nor the insecure registry itself."""
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            return
        if not (self.insecure and parts.scheme == "http" and parts.netloc == self.name.registry):
            raise Failed(f"the registry {self.name.registry} {what} {one_line(url, at_most=80)}, which is not https.")

    def _body(self, answer: requests.Response, at_most: int) -> bytes:
        until_s, pieces, seen = time.monotonic() + ANSWER_S, list[bytes](), 0
        for chunk in answer.iter_content(2**16):
            pieces.append(chunk)
            seen += len(chunk)
            if seen > at_most:
                answer.close()
                raise Failed(f"the response of the registry {self.name.registry} exceeds {at_most >> 10} KiB.")
            if time.monotonic() > until_s:
                answer.close()
                raise registry_errors.explain(self.name.asked, f"timeout: no complete response within {ANSWER_S} s")
        return b"".join(pieces)

    def _refusal(self, answer: requests.Response) -> Exception:
        message = f"{answer.status_code} {one_line(str(answer.reason), at_most=80)}"
        words = errors_of(self._body(answer, LARGEST_ERROR_BYTES))
        hidden = Redactor(self._given)  # whoever is given a login can repeat it
        return registry_errors.explain(self.name.asked, hidden.text(f"{message} {words}".strip()))

    # -- login ---------------------------------------------------------------------------------------------------

    def _log_in(self, challenge: str) -> None:
        """Answer a challenge: a token for reading this repository, or the password itself where that is asked."""
        import requests

        login = credentials(self.name.registry)
        self._given += login[1:] if login else ()
        kind, given = challenge_of(challenge)
        if kind == "basic" and login:
            request = requests.Request("GET", self._base, auth=login).prepare()
            self._token = str(request.headers["Authorization"])
            self._given.append(self._token.partition(" ")[2])
        elif kind == "bearer" and given.get("realm"):
            token = self._asked_token(given, login)
            self._token = f"Bearer {token}"
            self._given.append(token)

    def _asked_token(self, given: dict[str, str], login: tuple[str, str] | None) -> str:
        """A token from the realm that the registry names. The login goes there only where the realm is the registry's own."""
        realm = given["realm"]
        self._refuse_plain(realm, "has its token endpoint at")
        foreign = login is not None and not same_owner(
            urlsplit(self._base).hostname or "", urlsplit(realm).hostname or ""
        )
        scope = given.get("scope") or f"repository:{self.name.path}:pull"
        asked = {"service": given.get("service", ""), "scope": scope}
        answer = self._one(realm, {}, params=asked, auth=_nobody if foreign or not login else login)
        if answer.status_code != 200:
            if foreign:
                message = f"asks for the login at {one_line(realm, at_most=80)}, a different domain. It was not sent."
                raise Failed(f"the registry {self.name.registry} {message}")
            raise self._refusal(answer)
        return token_of(self._body(answer, LARGEST_TOKEN_BYTES), f"the token of {self.name.registry}")


def challenge_of(header: str) -> tuple[str, dict[str, str]]:
    """A WWW-Authenticate header: its scheme in small letters, and what it gives."""
    kind, _, rest = header[:4096].partition(" ")
    return kind.lower(), dict(re.findall(r'(\w{1,40})="([^"]{0,2048})"', rest))


def same_owner(registry: str, realm: str) -> bool:
    """Whether a realm may have a registry's login: the same host, one below it, or one beside it in its own domain."""
    registry, realm = registry.lower(), realm.lower()
    domain = registry.partition(".")[2]
    if realm == registry or realm.endswith(f".{registry}"):
        return True
    own = domain.count(".") >= 1 and not _SHARED.fullmatch(domain) and not re.fullmatch(r"[0-9.]+", registry)
    return own and (realm == domain or realm.endswith(f".{domain}"))


def token_of(raw: bytes, what: str) -> str:
    """The token in a token server's answer. Raises Failed when there is none that fits a header."""
    try:
        found = bounds.parsed(raw)
    except ValueError:
        found = None
    answer = checked(found, {"token": optional(str), "access_token": optional(str)}, what)
    token = str(answer.get("token") or answer.get("access_token") or "")
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise Failed(f"{what} is empty or invalid.")
    return token


def errors_of(raw: bytes) -> str:
    """What a registry's error says, in its own words, in one line."""
    try:
        found = checked(bounds.parsed(raw), {"errors": [{"code": optional(str), "message": optional(str)}]}, "an error")
    except (ValueError, Failed):
        return ""
    words = " ".join(f"{one.get('code') or ''}: {one.get('message') or ''}" for one in found["errors"][:5])
    return one_line(words, at_most=300)


def credentials(registry: str) -> tuple[str, str] | None:
    """What docker itself would log in with; None for nobody. Raises Failed when its credential helper refuses."""
    from docker.errors import DockerException

    fix = "On the host: check credsStore and credHelpers in ~/.docker/config.json."
    try:
        found = within(HELPER_S, lambda: _configured(HUB_LOGIN if registry == DOCKER_HUB else registry))
    except DockerException as error:
        message = one_line(str(error), at_most=200)
        raise Failed(f"Docker's credential helper for {registry} failed: {message}", fix=fix) from None
    except TimeoutError:
        message = f"Docker's credential helper for {registry} does not answer within {HELPER_S:g} s: it may be waiting for input."
        raise Failed(message, fix=fix) from None
    user, word = found.get("username") or found.get("Username"), found.get("password") or found.get("Password")
    return (str(user), str(word)) if user and word else None


def _configured(registry: str) -> dict[str, Any]:
    from docker import auth

    return auth.load_config().resolve_authconfig(registry) or {}


def _nobody(request: Any) -> Any:
    """Says nothing of who asks: without it requests would look into ~/.netrc."""
    return request
