"""A registry's information about an image that the engine does not pass on: manifests, configs, sizes."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Any

from sparkwright.engines.engine import USUAL, Engine, of
from sparkwright.errors import Failed
from sparkwright.host.images import registry_documents as documents
from sparkwright.host.images.registry_http import Http
from sparkwright.trust.image_name import Name

#: the manifest size that a registry must accept at least (distribution specification), and engines at most
LARGEST_MANIFEST_BYTES = 4 * 2**20
LARGEST_CONFIG_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest or an index, with the digest of its bytes."""

    digest: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Registry:
    """A client for one image's registry."""

    name: Name
    http: Http

    def entry(self, platform: str, engine: Engine | None = None) -> dict[str, Any]:
        """Return the lock's entry: digest, platforms, manifests; engine_version, created and size_bytes for this platform.

        Args:
            platform: such as linux/arm64.

        Raises:
            RegistryDown, NotThere or Failed.
        """
        top = self.manifest(self.name.digest or self.name.tag or "latest")
        manifests = self._of_index(top) if documents.is_index(top.data) else [self._of_single(top)]
        mine = next((manifest for manifest in manifests if manifest["platform"] == platform), None)
        config = self.config(mine["config"]) if mine else {}
        return {
            "digest": top.digest,
            "platforms": [manifest["platform"] for manifest in manifests],
            "manifests": manifests,
            "engine_version": (engine or of(USUAL)).version_in_image(config.get("config") or {}),
            "created": config.get("created"),
            "size_bytes": mine["size_bytes"] if mine else None,
        }

    def manifest(self, reference: str) -> Document:
        """Return a manifest by tag or digest. Raises Failed if its bytes do not match the digest."""
        accept = ", ".join((*documents.INDEXES, *documents.MANIFESTS))
        raw = self.http.get(f"manifests/{reference}", accept=accept, at_most=LARGEST_MANIFEST_BYTES)
        digest = documents.digest_of(raw)
        if reference.startswith("sha256:") and reference != digest:
            raise Failed(f"the registry {self.name.registry} returned {digest} instead of {reference}.")
        return Document(digest, documents.parsed(raw, f"{self.name.asked}: {digest}"))

    def config(self, digest: str) -> dict[str, Any]:
        """Return an image's config: platform, creation time, environment and labels."""
        raw = self.http.get(f"blobs/{digest}", accept="*/*", at_most=LARGEST_CONFIG_BYTES)
        if documents.digest_of(raw) != digest:
            raise Failed(f"the registry {self.name.registry} returned wrong content for {digest}.")
        what = f"{self.name.asked}: the config {digest}"
        return documents.config(documents.parsed(raw, what), what)

    def _of_index(self, top: Document) -> list[dict[str, Any]]:
        found = documents.platforms(top.data, f"{self.name.asked}: {top.digest}")
        return [{"platform": platform, **self._sized(self.manifest(found[platform]))} for platform in sorted(found)]

    def _of_single(self, top: Document) -> dict[str, Any]:
        sized = self._sized(top)
        return {"platform": self.config(sized["config"])["platform"], **sized}

    def _sized(self, document: Document) -> dict[str, Any]:
        return {"digest": document.digest, **documents.sized(document.data, f"{self.name.asked}: {document.digest}")}


def open_registry(api: Any, name: Name) -> Registry:
    """Return a client for an image's registry, with the engine's permission to use plain HTTP."""
    return Registry(name, Http(name, insecure=_insecure(api.info().get("RegistryConfig") or {}, name.registry)))


def _insecure(config: dict[str, Any], registry: str) -> bool:
    reported = (config.get("IndexConfigs") or {}).get(registry)
    if reported is not None:
        return not reported.get("Secure", True)
    host = registry.rpartition(":")[0] or registry
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    networks = config.get("InsecureRegistryCIDRs") or ["127.0.0.0/8"]
    return any(address in ipaddress.ip_network(network) for network in networks)
