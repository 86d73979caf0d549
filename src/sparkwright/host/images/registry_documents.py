"""Parse and validate a registry's documents about an image, and turn its errors into readable messages.

Source: the OCI image specification 1.1 and Docker's image manifest 2.2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparkwright.errors import Failed, SparkwrightError
from sparkwright.transport.connection import InvalidAnswer, ProxyFailed, TimedOut, TransportError, Untrusted
from sparkwright.trust import bounds
from sparkwright.trust.names import DIGEST, PLATFORM, require_match
from sparkwright.trust.shapes import optional, validate_or_fail

INDEX_MEDIA_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_MEDIA_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
CONFIG_MEDIA_TYPES = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")

_DESCRIPTOR_SHAPE = {"digest": str, "size": int, "mediaType": optional(str)}
_INDEX_SHAPE = {
    "mediaType": optional(str),
    "manifests": [{**_DESCRIPTOR_SHAPE, "platform": optional({"os": optional(str), "architecture": optional(str)})}],
}
_MANIFEST_SHAPE = {"mediaType": optional(str), "config": _DESCRIPTOR_SHAPE, "layers": [_DESCRIPTOR_SHAPE]}
_CONFIG_SHAPE = {
    "os": optional(str),
    "architecture": optional(str),
    "created": optional(str),
    "config": optional({"Env": optional([str]), "Labels": optional({str: str})}),
}
_DISTRIBUTION_SHAPE = {"Descriptor": {"digest": str}, "Platforms": optional([{"os": str, "architecture": str}])}
#: Docker accepts at most 127 layers; the index of a popular image has about ten platforms, each with an attestation
MAX_LAYERS, MAX_PLATFORMS = 1000, 100
MAX_IMAGE_BYTES = 2**50
TIMESTAMP_PATTERN = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,30}(?:Z|[+-][0-9:]{4,6})")


_NETWORK_ERRORS = (
    "connection refused",
    "no such host",
    "i/o timeout",
    "timeout",
    "tls handshake",
    "unexpected eof",
    "connection reset",
    "network is unreachable",
    "server misbehaving",
    "500 internal server error",
    "502 bad gateway",
    "503 service unavailable",
    "504 gateway",
    "toomanyrequests",
    "429 too many requests",
    "broken pipe",
    "unexpected http status: 5",
    "filesystem layer verification failed",
)
_NETWORK_FIX = "Check the host's network, its DNS and proxy; a host that already has the image needs no registry."
_TAG_FIX = "Check the tag in the recipe."
_DIGEST_FIX = (
    "If the pinned digest was deleted upstream: copy the image from a host that has it "
    "(`invoke images.copy --from HOST --to HOST`), or pin the tag again (`invoke lock --update`)."
)


class RegistryDown(Failed):
    """The registry could not be reached, or a transfer broke off; a retry may help."""


class NotInRegistry(Failed):
    """The registry does not have this tag or digest."""


def compute_digest(raw: bytes) -> str:
    """Return the digest of a document's bytes."""
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def parse_object(raw: bytes, label: str) -> dict[str, Any]:
    """Parse a JSON object. Raises Failed if it is anything else, or nested too deeply."""
    try:
        data = bounds.parse_bounded_json(raw)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise Failed(f"{label} is not a JSON object.")
    return data


def parse_distribution(answer: Any, label: str) -> dict[str, Any]:
    """Return digest and platforms (may be empty) from Docker's distribution inspect data of an image in a registry."""
    description = validate_or_fail(answer, _DISTRIBUTION_SHAPE, label)
    platforms = {f"{platform['os']}/{platform['architecture']}" for platform in description.get("Platforms") or ()}
    return {
        "digest": require_match(DIGEST, description["Descriptor"]["digest"], f"the digest in {label}"),
        "platforms": sorted(name for name in platforms if PLATFORM.fullmatch(name) and "unknown" not in name),
    }


def is_index(document: dict[str, Any]) -> bool:
    """Return True if a document is an image index, which lists manifests by platform."""
    return "manifests" in document


def parse_index(index: dict[str, Any], label: str) -> dict[str, str]:
    """Return the digest of the first manifest for each platform, such as linux/arm64.

    Raises Failed for anything but an image index. Entries without a platform (attestations) are left out.
    """
    digests: dict[str, str] = {}
    manifests = validate_or_fail(index, _INDEX_SHAPE, label)["manifests"]
    if index.get("mediaType") not in (None, *INDEX_MEDIA_TYPES) or len(manifests) > MAX_PLATFORMS:
        raise Failed(f"{label} is not an image index, or has more than {MAX_PLATFORMS} entries.")
    for manifest in manifests:
        fields = manifest.get("platform") or {}
        platform = f"{fields.get('os')}/{fields.get('architecture')}"
        if platform not in digests and PLATFORM.fullmatch(platform) and "unknown" not in platform:
            digests[platform] = require_match(DIGEST, manifest["digest"], f"a digest in {label}")
    return digests


def parse_manifest(manifest: dict[str, Any], label: str) -> dict[str, Any]:
    """Return a manifest's config (its digest) and size_bytes (the download size). Raises Failed if it is not an image's."""
    validate_or_fail(manifest, _MANIFEST_SHAPE, label)
    config, layers = manifest["config"], manifest["layers"]
    is_image = manifest.get("mediaType") in (None, *MANIFEST_MEDIA_TYPES) and config.get("mediaType") in (
        None,
        *CONFIG_MEDIA_TYPES,
    )
    sizes_bytes = [config["size"], *(layer["size"] for layer in layers)]
    if not is_image or len(layers) > MAX_LAYERS or min(sizes_bytes) < 0 or sum(sizes_bytes) > MAX_IMAGE_BYTES:
        raise Failed(f"{label} is not an image manifest.")
    return {
        "config": require_match(DIGEST, config["digest"], f"the config's digest in {label}"),
        "size_bytes": sum(sizes_bytes),
    }


def parse_config(document: dict[str, Any], label: str) -> dict[str, Any]:
    """Return platform, created (None if it is not a timestamp) and config of an image. Raises Failed if invalid."""
    data = validate_or_fail(document, _CONFIG_SHAPE, label)
    platform = f"{data.get('os') or 'linux'}/{data.get('architecture') or ''}"
    created = data.get("created") or ""
    return {
        "platform": require_match(PLATFORM, platform, f"the platform in {label}"),
        "created": created if TIMESTAMP_PATTERN.fullmatch(created) else None,
        "config": data.get("config") or {},
    }


@contextmanager
def explain_errors(ref: str) -> Iterator[None]:
    """Convert errors from Docker's API about an image reference to readable ones."""
    from docker.errors import APIError
    from requests import RequestException

    try:
        yield
    except APIError as error:
        raise error_from_message(ref, str(error.explanation or error)) from None
    except RequestException as error:
        raise error_from_message(ref, f"timeout ({type(error).__name__})") from None


def no_answer_error(ref: str, error: TransportError) -> RegistryDown:
    """Return the error for a registry that did not give a usable answer about an image reference."""
    is_predicate = isinstance(
        error, TimedOut | InvalidAnswer | Untrusted | ProxyFailed
    )  # its text completes "the registry ..."
    reason = str(error) if is_predicate else f"does not answer: it {error}"
    return RegistryDown(f"the registry of {ref} {reason}.", fix=_NETWORK_FIX)


def error_from_message(ref: str, text: str) -> SparkwrightError:
    """Return the error for a message from Docker or a registry about an image reference."""
    lowered_text = text.lower()
    if "no space left on device" in lowered_text:
        return Failed(
            f"no space left on Docker's disk: cannot pull {ref}.",
            fix="On the host: `docker system df`, then remove unused images (`docker image prune`).",
        )
    if any(word in lowered_text for word in _NETWORK_ERRORS):
        return RegistryDown(f"the registry of {ref} does not answer: {text.strip().rstrip('.')}.", fix=_NETWORK_FIX)
    if "unauthorized" in lowered_text or "denied" in lowered_text or "authentication required" in lowered_text:
        return Failed(
            f"the registry denies access to {ref}, or has no such repository.",
            fix="Check the name; for a private repository, run `docker login` on the host as the same user.",
        )
    if any(word in lowered_text for word in ("not found", "manifest unknown", "does not exist", "manifest_unknown")):
        return NotInRegistry(f"the registry has no {ref}.", fix=_DIGEST_FIX if "@" in ref else _TAG_FIX)
    return Failed(f"cannot pull {ref}: {text.strip()}")
