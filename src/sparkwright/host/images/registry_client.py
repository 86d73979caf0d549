"""What a registry's HTTP API tells about an image that the engine does not pass on: manifests, configs, sizes.

Source: the OCI distribution specification 1.1; tokens as Docker's registry token authentication describes them. Credentials
are docker's own: config.json with its credential helpers, of the user who runs this.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkwright.engine import image as engine_image
from sparkwright.errors import Failed
from sparkwright.host.images import registry_errors
from sparkwright.host.images.image_names import DOCKER_HUB, Name

if TYPE_CHECKING:
    import requests

ANSWER_S = 20
INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
HUB_HOST = "registry-1.docker.io"
HUB_LOGIN = "https://index.docker.io/v1/"
LARGEST_CONFIG_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest or an index, with the digest of its bytes."""

    digest: str
    data: dict[str, Any]

    @property
    def is_index(self) -> bool:
        return "manifests" in self.data


@dataclass
class Registry:
    """The registry of one image. insecure: the engine may speak plain HTTP with it."""

    name: Name
    insecure: bool = False
    _session: requests.Session | None = None
    _token: dict[str, str] = field(default_factory=dict)
    _base: str = ""

    def entry(self, platform: str) -> dict[str, Any]:
        """The lock's entry: digest, platforms, manifests; engine_version, created and size_bytes of this platform's.

        platform: as linux/arm64. Raises RegistryDown, NotThere or Failed.
        """
        top = self.manifest(self.name.digest or self.name.tag or "latest")
        manifests = self._of_index(top) if top.is_index else [self._of_single(top)]
        mine = next((one for one in manifests if one["platform"] == platform), None)
        config = self.config(mine["config"]) if mine else {}
        return {
            "digest": top.digest,
            "platforms": [one["platform"] for one in manifests],
            "manifests": manifests,
            "engine_version": engine_image.version_of(config.get("config") or {}),
            "created": config.get("created"),
            "size_bytes": mine["size_bytes"] if mine else None,
        }

    def manifest(self, reference: str) -> Document:
        """A manifest by tag or digest. Bytes that are not what the digest says are refused."""
        answer = self._get(f"manifests/{reference}", accept=", ".join((*INDEXES, *MANIFESTS)))
        digest = "sha256:" + hashlib.sha256(answer).hexdigest()
        if reference.startswith("sha256:") and reference != digest:
            raise Failed(f"the registry {self.name.registry} answers {digest} when it is asked for {reference}.")
        return Document(digest, self._json(answer))

    def config(self, digest: str) -> dict[str, Any]:
        """The config of an image: environment, labels, when it was made, the hashes of its layers."""
        answer = self._get(f"blobs/{digest}", accept="*/*")
        if "sha256:" + hashlib.sha256(answer).hexdigest() != digest:
            raise Failed(f"the registry {self.name.registry} answers wrong bytes for {digest}.")
        return self._json(answer)

    def _of_index(self, top: Document) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for one in top.data["manifests"]:
            about = one.get("platform") or {}
            platform = f"{about.get('os')}/{about.get('architecture')}"
            if platform not in found and "unknown" not in platform and "None" not in platform:
                found[platform] = {"platform": platform, **self._sized(self.manifest(one["digest"]))}
        return [found[platform] for platform in sorted(found)]

    def _of_single(self, top: Document) -> dict[str, Any]:
        sized = self._sized(top)
        config = self.config(sized["config"])
        return {"platform": f"{config.get('os', 'linux')}/{config.get('architecture', '')}", **sized}

    def _sized(self, one: Document) -> dict[str, Any]:
        try:
            config, layers = one.data["config"], one.data["layers"]
            size = config["size"] + sum(layer["size"] for layer in layers)
            return {"digest": one.digest, "config": config["digest"], "size_bytes": size}
        except (KeyError, TypeError):
            raise Failed(f"{self.name.asked}: {one.digest} is no manifest of an image.") from None

    # -- HTTP ----------------------------------------------------------------------------------------------------

    def _get(self, path: str, *, accept: str) -> bytes:
        import requests

        try:
            answer = self._send(path, accept)
            if answer.status_code == 401:
                self._log_in(answer.headers.get("WWW-Authenticate", ""))
                answer = self._send(path, accept)
            if answer.status_code != 200:
                said = f"{answer.status_code} {answer.reason}"
                raise registry_errors.explain(self.name.asked, f"{said} {_words(answer)}".strip())
            return b"".join(self._within(answer))
        except requests.RequestException as error:
            raise registry_errors.explain(self.name.asked, f"timeout ({type(error).__name__})") from None

    def _within(self, answer: requests.Response) -> Any:
        seen = 0
        for chunk in answer.iter_content(2**16):
            seen += len(chunk)
            if seen > LARGEST_CONFIG_BYTES:
                raise Failed(f"{self.name.asked}: a manifest or config of more than {LARGEST_CONFIG_BYTES >> 20} MiB.")
            yield chunk

    def _send(self, path: str, accept: str) -> requests.Response:
        import requests

        self._session = self._session or requests.Session()
        if not self._base:
            self._base = self._reach(self._session)
        url = f"{self._base}/v2/{self.name.path}/{path}"
        headers = {"Accept": accept, **self._token}
        return self._session.get(url, headers=headers, timeout=ANSWER_S, stream=True, verify=not self.insecure)

    def _reach(self, session: requests.Session) -> str:
        """https; for a registry that the engine may reach without TLS, http where https does not answer."""
        import requests

        host = HUB_HOST if self.name.registry == DOCKER_HUB else self.name.registry
        if self.insecure:
            try:
                session.get(f"https://{host}/v2/", timeout=ANSWER_S, verify=False)
            except requests.RequestException:
                return f"http://{host}"
        return f"https://{host}"

    def _log_in(self, challenge: str) -> None:
        """Answer a challenge: a token for reading this repository, or the password itself where that is asked."""
        import requests

        login = credentials(self.name.registry)
        kind, _, rest = challenge.partition(" ")
        given = dict(re.findall(r'(?<!\w)(\w+)="([^"]*)"', rest))
        if kind.lower() == "basic" and login:
            request = requests.Request("GET", self._base, auth=login).prepare()
            self._token = {"Authorization": str(request.headers["Authorization"])}
        elif kind.lower() == "bearer" and "realm" in given and self._session:
            scope = given.get("scope") or f"repository:{self.name.path}:pull"
            asked = {"service": given.get("service", ""), "scope": scope}
            answer = self._session.get(given["realm"], params=asked, auth=login, timeout=ANSWER_S)
            if answer.status_code != 200:
                raise registry_errors.explain(self.name.asked, f"{answer.status_code} {answer.reason}")
            said = answer.json()
            self._token = {"Authorization": f"Bearer {said.get('token') or said.get('access_token')}"}

    def _json(self, raw: bytes) -> dict[str, Any]:
        try:
            found = json.loads(raw)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise Failed(f"the registry {self.name.registry} answers something that is no manifest.")
        return found


def open_registry(api: Any, name: Name) -> Registry:
    """The registry of an image, reached as the engine may reach it."""
    return Registry(name, insecure=_insecure(api.info().get("RegistryConfig") or {}, name.registry))


def credentials(registry: str) -> tuple[str, str] | None:
    """What docker itself would log in with; None for nobody. Raises Failed when its credential helper refuses."""
    from docker import auth
    from docker.errors import DockerException

    try:
        found = auth.load_config().resolve_authconfig(HUB_LOGIN if registry == DOCKER_HUB else registry) or {}
    except DockerException as error:
        fix = "On the host: look at credsStore and credHelpers in ~/.docker/config.json."
        raise Failed(f"docker's credential helper for {registry} fails: {error}", fix=fix) from None
    user, word = found.get("username") or found.get("Username"), found.get("password") or found.get("Password")
    return (str(user), str(word)) if user and word else None


def _insecure(config: dict[str, Any], registry: str) -> bool:
    import ipaddress

    told = (config.get("IndexConfigs") or {}).get(registry)
    if told is not None:
        return not told.get("Secure", True)
    host = registry.rpartition(":")[0] or registry
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    networks = config.get("InsecureRegistryCIDRs") or ["127.0.0.0/8"]
    return any(address in ipaddress.ip_network(one) for one in networks)


def _words(answer: requests.Response) -> str:
    """What a registry's error says, in its own words."""
    try:
        errors = answer.json().get("errors") or []
        return " ".join(f"{one.get('code', '')}: {one.get('message', '')}" for one in errors)
    except (ValueError, AttributeError):
        return ""
