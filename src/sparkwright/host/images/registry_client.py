"""A registry client for the parts of an image that Docker does not return: manifests, configs, sizes.

It sends only GET requests, limited in bytes, time and redirects. The login is sent only to the registry, and to a token server
(realm) of the same owner. The credentials are docker's: this user's config.json with its credential helpers.

Source: the OCI distribution specification 1.1, and Docker's registry token authentication.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from sparkwright.engines.engine import DEFAULT_ENGINE, Engine, get_engine
from sparkwright.errors import Failed
from sparkwright.host.images import registry_documents
from sparkwright.host.output import call_with_timeout
from sparkwright.transport import http
from sparkwright.transport.connection import Deadline, InvalidRequest, Tls, TooLarge, TransportError
from sparkwright.transport.http import REDIRECT_STATUSES, Response
from sparkwright.trust import bounds
from sparkwright.trust.image_name import DOCKER_HUB, ImageReference
from sparkwright.trust.redact import Redactor
from sparkwright.trust.shapes import optional, validate_or_fail
from sparkwright.visible import one_line

#: time limit for one document, including login and redirects
DOCUMENT_TIMEOUT_S = 60.0
#: time limit for the first request to an insecure registry, which shows whether it supports TLS
TLS_PROBE_TIMEOUT_S = 20.0
#: time limit for docker's credential helper, which may be waiting for a PIN
CREDENTIAL_HELPER_TIMEOUT_S = 30.0
MAX_REDIRECTS = 5
HUB_HOST = "registry-1.docker.io"
HUB_LOGIN_URL = "https://index.docker.io/v1/"
MAX_TOKEN_BYTES = 64 * 2**10
MAX_ERROR_BYTES = 64 * 2**10
#: the manifest size that the distribution specification requires registries to accept, and Docker's maximum
MAX_MANIFEST_BYTES = 4 * 2**20
MAX_CONFIG_BYTES = 8 * 2**20
_STATUS_PHRASES = {status.value: status.phrase for status in HTTPStatus}
#: public second-level domains: `a.co.uk` and `b.co.uk` have different owners
_PUBLIC_SUFFIX_PATTERN = re.compile(r"(?:co|com|net|org|gov|edu|ac)\.[a-z]{2}")


@dataclass
class RegistryHttp:
    """The HTTP client of one registry."""

    name: ImageReference
    #: True if Docker's configuration allows plain HTTP
    insecure: bool = False
    #: value of the Authorization header; empty before the login
    _authorization: str = ""
    _base_url: str = ""
    #: secrets to redact from error messages
    _secrets: list[str] = field(default_factory=list)

    def get(self, path: str, *, accept: str, max_bytes: int) -> bytes:
        """Return the document, of at most max_bytes, at a path below the image's repository, within DOCUMENT_TIMEOUT_S.

        Raises RegistryDown, NotInRegistry or Failed.
        """
        deadline = Deadline(DOCUMENT_TIMEOUT_S)
        try:
            url = f"{self._find_base_url(deadline)}/v2/{self.name.path}/{path}"
            answer = self._send(url, accept, max_bytes, deadline)
            if answer.status == 401:
                self._log_in(answer.headers.get("www-authenticate", ""), deadline)
                answer = self._send(url, accept, max_bytes, deadline)
        except TooLarge as error:
            message = (
                f"the response of the registry {self.name.registry} exceeds {(error.max_bytes or max_bytes) >> 10} KiB."
            )
            raise Failed(message) from None
        except InvalidRequest as error:
            raise Failed(f"the registry {self.name.registry} returned a URL that {error}.") from None
        except TransportError as error:
            raise registry_documents.no_answer_error(self.name.pull_reference, error) from None
        if answer.status != 200:
            raise self._build_error(answer)
        return answer.body

    def _find_base_url(self, deadline: Deadline) -> str:
        """Return the base URL: https, or http if https does not answer and plain HTTP is allowed."""
        if self._base_url:
            return self._base_url
        host = HUB_HOST if self.name.registry == DOCKER_HUB else self.name.registry
        self._base_url = f"https://{host}"
        if self.insecure:
            try:
                self._request(
                    f"https://{host}/v2/", {}, MAX_ERROR_BYTES, min(TLS_PROBE_TIMEOUT_S, deadline.remaining_s())
                )
            except TransportError:
                self._base_url = f"http://{host}"
        return self._base_url

    def _send(self, url: str, accept: str, max_bytes: int, deadline: Deadline) -> Response:
        """Send a GET and follow redirects (blobs are often on another host). The login is not sent to another host."""
        for _ in range(MAX_REDIRECTS + 1):
            headers = {"Accept": accept}
            if self._authorization and urlsplit(url)[:2] == urlsplit(self._base_url)[:2]:  # scheme and host
                headers["Authorization"] = self._authorization
            answer = self._request(url, headers, max_bytes, deadline.remaining_s())
            if answer.status not in REDIRECT_STATUSES:
                return answer
            try:
                url = urljoin(url, answer.headers.get("location", ""))
                self._refuse_plain_http(url, "redirects to")
            except ValueError as error:
                raise Failed(f"the registry {self.name.registry} returned an invalid URL: {error}.") from None
        raise Failed(f"the registry {self.name.registry} redirects more than {MAX_REDIRECTS} times.")

    def _request(self, url: str, headers: Mapping[str, str], max_bytes: int, timeout_s: float) -> Response:
        verify = not (self.insecure and urlsplit(url).netloc == self.name.registry)
        route = http.Route(tls=Tls(verify=verify), proxies=True)
        return http.request(
            "GET",
            url,
            headers=headers,
            max_bytes=max_bytes,
            max_error_bytes=MAX_ERROR_BYTES,
            timeout_s=timeout_s,
            route=route,
        )

    def _refuse_plain_http(self, url: str, verb: str) -> None:
        """Raise Failed unless the URL is https, or on the registry itself if plain HTTP is allowed there.

        Args:
            verb: text between the registry's name and the URL in the message.
        """
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            return
        if not (self.insecure and parts.scheme == "http" and parts.netloc == self.name.registry):
            raise Failed(f"the registry {self.name.registry} {verb} {one_line(url, max_chars=80)}, which is not https.")

    def _build_error(self, answer: Response) -> Exception:
        message = f"{answer.status} {_STATUS_PHRASES.get(answer.status, '')} {parse_errors(answer.body)}"
        redactor = Redactor(self._secrets)  # the registry may echo the login
        return registry_documents.error_from_message(
            self.name.pull_reference, redactor.redact_text(" ".join(message.split()))
        )

    # -- login ---------------------------------------------------------------------------------------------------

    def _log_in(self, challenge: str, deadline: Deadline) -> None:
        """Authenticate as the challenge requires: with a token to read this repository, or with user and password."""
        login = find_credentials(self.name.registry)
        self._secrets += login[1:] if login else ()
        scheme, parameters = parse_challenge(challenge)
        if scheme == "basic" and login:
            self._authorization = _basic_auth(login)
            self._secrets.append(self._authorization.partition(" ")[2])
        elif scheme == "bearer" and parameters.get("realm"):
            token = self._request_token(parameters, login, deadline)
            self._authorization = f"Bearer {token}"
            self._secrets.append(token)

    def _request_token(self, parameters: dict[str, str], login: tuple[str, str] | None, deadline: Deadline) -> str:
        """Request a token from the registry's realm. The login is sent only if the realm belongs to the registry."""
        realm = parameters["realm"]
        self._refuse_plain_http(realm, "has its token endpoint at")
        is_foreign = login is not None and not is_same_owner(
            urlsplit(self._base_url).hostname or "", urlsplit(realm).hostname or ""
        )
        scope = parameters.get("scope") or f"repository:{self.name.path}:pull"
        query = urlencode({"service": parameters.get("service", ""), "scope": scope})
        url = f"{realm}{'&' if '?' in realm else '?'}{query}"
        headers = {} if is_foreign or not login else {"Authorization": _basic_auth(login)}
        answer = self._request(url, headers, MAX_TOKEN_BYTES, deadline.remaining_s())
        if answer.status != 200:
            if is_foreign:
                message = f"requires a login at {one_line(realm, max_chars=80)}, a different domain. It was not sent."
                raise Failed(f"the registry {self.name.registry} {message}")
            raise self._build_error(answer)
        return parse_token(answer.body, f"the token of {self.name.registry}")


def parse_challenge(header: str) -> tuple[str, dict[str, str]]:
    """Parse a WWW-Authenticate header: its scheme in lower case, and its parameters."""
    scheme, _, parameters = header[:4096].partition(" ")
    return scheme.lower(), dict(re.findall(r'(\w{1,40})="([^"]{0,2048})"', parameters))


def is_same_owner(registry: str, realm: str) -> bool:
    """Return True if a realm's host may receive the registry's login: the same host, or one in its domain."""
    registry, realm = registry.lower(), realm.lower()
    if realm == registry or realm.endswith(f".{registry}"):
        return True
    domain = registry.partition(".")[2]
    if "." not in domain or _PUBLIC_SUFFIX_PATTERN.fullmatch(domain) or re.fullmatch(r"[0-9.]+", registry):
        return False
    return realm == domain or realm.endswith(f".{domain}")


def parse_token(raw: bytes, label: str) -> str:
    """Return the token in a token server's response. Raises Failed if it is missing or not valid in a header."""
    try:
        data = bounds.parse_bounded_json(raw)
    except ValueError:
        data = None
    answer = validate_or_fail(data, {"token": optional(str), "access_token": optional(str)}, label)
    token = str(answer.get("token") or answer.get("access_token") or "")
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise Failed(f"{label} is empty or invalid.")
    return token


def parse_errors(raw: bytes) -> str:
    """Return the error messages in a registry's response as one line, or "" if there are none."""
    try:
        data = validate_or_fail(
            bounds.parse_bounded_json(raw), {"errors": [{"code": optional(str), "message": optional(str)}]}, "an error"
        )
    except (ValueError, Failed):
        return ""
    text = " ".join(f"{error.get('code') or ''}: {error.get('message') or ''}" for error in data["errors"][:5])
    return one_line(text, max_chars=300)


def find_credentials(registry: str) -> tuple[str, str] | None:
    """Return docker's user and password for a registry, or None if it has none.

    Raises Failed if docker's credential helper fails or does not finish in time.
    """
    from docker.errors import DockerException

    fix = "On the host: check credsStore and credHelpers in ~/.docker/config.json."
    try:
        login = call_with_timeout(
            CREDENTIAL_HELPER_TIMEOUT_S,
            lambda: _load_credentials(HUB_LOGIN_URL if registry == DOCKER_HUB else registry),
        )
    except DockerException as error:
        message = one_line(str(error), max_chars=200)
        raise Failed(f"Docker's credential helper for {registry} failed: {message}", fix=fix) from None
    except TimeoutError:
        message = (
            f"Docker's credential helper for {registry} did not finish within {CREDENTIAL_HELPER_TIMEOUT_S:g} s: it may be "
            "waiting for input."
        )
        raise Failed(message, fix=fix) from None
    user, password = login.get("username") or login.get("Username"), login.get("password") or login.get("Password")
    return (str(user), str(password)) if user and password else None


def _load_credentials(registry: str) -> dict[str, Any]:
    from docker import auth

    return auth.load_config().resolve_authconfig(registry) or {}


def _basic_auth(login: tuple[str, str]) -> str:
    return "Basic " + base64.b64encode(":".join(login).encode()).decode()


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest or an image index, with the digest of its bytes."""

    digest: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Registry:
    """A reader of one image's documents in its registry."""

    name: ImageReference
    http: RegistryHttp

    def entry(self, platform: str, engine: Engine | None = None) -> dict[str, Any]:
        """Return the image's lock entry, with engine_version, created and size_bytes for this platform, such as linux/arm64.

        Raises RegistryDown, NotInRegistry or Failed.
        """
        document = self.manifest(self.name.digest or self.name.tag or "latest")
        if registry_documents.is_index(document.data):
            manifests = self._index_entries(document)
        else:
            manifest = self._manifest_summary(document)
            manifests = [{"platform": self.config(manifest["config"])["platform"], **manifest}]
        selected_manifest = next((manifest for manifest in manifests if manifest["platform"] == platform), None)
        config = self.config(selected_manifest["config"]) if selected_manifest else {}
        return {
            "digest": document.digest,
            "platforms": [manifest["platform"] for manifest in manifests],
            "manifests": manifests,
            "engine_version": (engine or get_engine(DEFAULT_ENGINE)).version_in_image(config.get("config") or {}),
            "created": config.get("created"),
            "size_bytes": selected_manifest["size_bytes"] if selected_manifest else None,
        }

    def manifest(self, reference: str) -> Document:
        """Return the manifest or index with this tag or digest. Raises Failed if its bytes do not match the digest."""
        accept = ", ".join((*registry_documents.INDEX_MEDIA_TYPES, *registry_documents.MANIFEST_MEDIA_TYPES))
        raw = self.http.get(f"manifests/{reference}", accept=accept, max_bytes=MAX_MANIFEST_BYTES)
        digest = registry_documents.compute_digest(raw)
        if reference.startswith("sha256:") and reference != digest:
            raise Failed(f"the registry {self.name.registry} returned {digest} instead of {reference}.")
        return Document(digest, registry_documents.parse_object(raw, f"{self.name.pull_reference}: {digest}"))

    def config(self, digest: str) -> dict[str, Any]:
        """Return an image's config: platform, creation time, environment and labels."""
        raw = self.http.get(f"blobs/{digest}", accept="*/*", max_bytes=MAX_CONFIG_BYTES)
        if registry_documents.compute_digest(raw) != digest:
            raise Failed(f"the registry {self.name.registry} returned wrong content for {digest}.")
        label = f"{self.name.pull_reference}: the config {digest}"
        return registry_documents.parse_config(registry_documents.parse_object(raw, label), label)

    def _index_entries(self, index: Document) -> list[dict[str, Any]]:
        digests = registry_documents.parse_index(index.data, f"{self.name.pull_reference}: {index.digest}")
        return [
            {"platform": platform, **self._manifest_summary(self.manifest(digests[platform]))}
            for platform in sorted(digests)
        ]

    def _manifest_summary(self, document: Document) -> dict[str, Any]:
        return {
            "digest": document.digest,
            **registry_documents.parse_manifest(document.data, f"{self.name.pull_reference}: {document.digest}"),
        }


def open_registry(api: Any, name: ImageReference) -> Registry:
    """Return a client for an image's registry, which uses plain HTTP only where Docker's configuration allows it."""
    is_insecure = _is_insecure(api.info().get("RegistryConfig") or {}, name.registry)
    return Registry(name, RegistryHttp(name, insecure=is_insecure))


def _is_insecure(config: dict[str, Any], registry: str) -> bool:
    index_config = (config.get("IndexConfigs") or {}).get(registry)
    if index_config is not None:
        return not index_config.get("Secure", True)
    host = registry.rpartition(":")[0] or registry
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    networks = config.get("InsecureRegistryCIDRs") or ["127.0.0.0/8"]
    return any(address in ipaddress.ip_network(network) for network in networks)
