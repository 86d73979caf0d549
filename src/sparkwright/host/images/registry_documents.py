"""Documents about an image from a registry, and readable messages for its errors. Every part is validated before use.

Source: the OCI image specification 1.1 and Docker's image manifest 2.2.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparkwright.errors import Failed, SparkwrightError
from sparkwright.transport.connection import InvalidAnswer, TimedOut, TransportError, Untrusted
from sparkwright.trust import bounds
from sparkwright.trust.names import DIGEST, PLATFORM, matched
from sparkwright.trust.shapes import checked, optional

INDEXES = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
MANIFESTS = ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json")
CONFIGS = ("application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json")

_DESCRIPTOR = {"digest": str, "size": int, "mediaType": optional(str)}
_INDEX = {
    "mediaType": optional(str),
    "manifests": [{**_DESCRIPTOR, "platform": optional({"os": optional(str), "architecture": optional(str)})}],
}
_MANIFEST = {"mediaType": optional(str), "config": _DESCRIPTOR, "layers": [_DESCRIPTOR]}
_CONFIG = {
    "os": optional(str),
    "architecture": optional(str),
    "created": optional(str),
    "config": optional({"Env": optional([str]), "Labels": optional({str: str})}),
}
_DISTRIBUTION = {"Descriptor": {"digest": str}, "Platforms": optional([{"os": str, "architecture": str}])}
#: an engine accepts 127 layers at most; an index of a popular image has about ten platforms, each with an attestation
MOST_LAYERS, MOST_PLATFORMS = 1000, 100
LARGEST_BYTES = 2**50
CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,30}(?:Z|[+-][0-9:]{4,6})")


def digest_of(raw: bytes) -> str:
    """Return the digest of a document's bytes."""
    return "sha256:" + hashlib.sha256(raw).hexdigest()


def parsed(raw: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object. Raises Failed for anything else, and for one that is nested too deeply."""
    try:
        found = bounds.parsed(raw)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Failed(f"{what} is not a JSON object.")
    return found


def distribution(answer: Any, what: str) -> dict[str, Any]:
    """Return digest and platforms from an engine's description of an image in a registry; platforms may be empty."""
    found = checked(answer, _DISTRIBUTION, what)
    rows = {f"{platform['os']}/{platform['architecture']}" for platform in found.get("Platforms") or ()}
    known = sorted(row for row in rows if PLATFORM.fullmatch(row) and "unknown" not in row)
    return {"digest": matched(DIGEST, found["Descriptor"]["digest"], f"the digest in {what}"), "platforms": known}


def is_index(document: dict[str, Any]) -> bool:
    """Return True if a document is an image index, which lists manifests by platform."""
    return "manifests" in document


def platforms(index: dict[str, Any], what: str) -> dict[str, str]:
    """Return the digest of the first manifest for each platform, such as linux/arm64.

    Raises Failed for anything but an image index. Entries without a platform (attestations) are left out.
    """
    found: dict[str, str] = {}
    rows = checked(index, _INDEX, what)["manifests"]
    if index.get("mediaType") not in (None, *INDEXES) or len(rows) > MOST_PLATFORMS:
        raise Failed(f"{what} is not an image index, or has more than {MOST_PLATFORMS} entries.")
    for row in rows:
        about = row.get("platform") or {}
        platform = f"{about.get('os')}/{about.get('architecture')}"
        if platform not in found and PLATFORM.fullmatch(platform) and "unknown" not in platform:
            found[platform] = matched(DIGEST, row["digest"], f"a digest in {what}")
    return found


def sized(manifest: dict[str, Any], what: str) -> dict[str, Any]:
    """Return config (its digest) and size_bytes (the download size) of a manifest. Raises Failed for anything but an image."""
    checked(manifest, _MANIFEST, what)
    config, layers = manifest["config"], manifest["layers"]
    image = manifest.get("mediaType") in (None, *MANIFESTS) and config.get("mediaType") in (None, *CONFIGS)
    sizes = [config["size"], *(layer["size"] for layer in layers)]
    if not image or len(layers) > MOST_LAYERS or min(sizes) < 0 or sum(sizes) > LARGEST_BYTES:
        raise Failed(f"{what} is not an image manifest.")
    return {"config": matched(DIGEST, config["digest"], f"the config's digest in {what}"), "size_bytes": sum(sizes)}


def config(document: dict[str, Any], what: str) -> dict[str, Any]:
    """Return platform, created (None if it is not a timestamp) and config of an image's config.

    Raises Failed for anything else.
    """
    found = checked(document, _CONFIG, what)
    platform = f"{found.get('os') or 'linux'}/{found.get('architecture') or ''}"
    created = found.get("created") or ""
    return {
        "platform": matched(PLATFORM, platform, f"the platform in {what}"),
        "created": created if CREATED.fullmatch(created) else None,
        "config": found.get("config") or {},
    }


_NETWORK = (
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

_FIX = "Check the host's network, its DNS and proxy; a host that already has the image needs no registry."
_NO_TAG = "Check the tag in the recipe."
_GONE = (
    "A pinned digest deleted upstream: copy it from a host that has it (`invoke images.copy --from HOST --to HOST`), "
    "or pin the tag again (`invoke lock --update`)."
)


class RegistryDown(Failed):
    """The registry could not be reached, or a transfer broke off; a retry may help."""


class NotThere(Failed):
    """The registry does not have this tag or digest."""


@contextmanager
def explained(ref: str) -> Iterator[None]:
    """Convert the engine's errors about an image reference to readable messages."""
    from docker.errors import APIError
    from requests import RequestException

    try:
        yield
    except APIError as error:
        raise explain(ref, str(error.explanation or error)) from None
    except RequestException as error:
        raise explain(ref, f"timeout ({type(error).__name__})") from None


def unanswered(ref: str, error: TransportError) -> RegistryDown:
    """Return the error for a registry that gave no answer about an image reference."""
    answers = isinstance(error, TimedOut | InvalidAnswer | Untrusted)
    reason = str(error) if answers else f"does not answer: it {error}"
    return RegistryDown(f"the registry of {ref} {reason}.", fix=_FIX)


def explain(ref: str, text: str) -> SparkwrightError:
    """Return the error for an engine's message about an image reference."""
    low = text.lower()
    if "no space left on device" in low:
        return Failed(
            f"no space left on Docker's disk: cannot pull {ref}.",
            fix="On the host: `docker system df`, then remove unused images (`docker image prune`).",
        )
    if any(word in low for word in _NETWORK):
        return RegistryDown(
            f"the registry of {ref} does not answer: {text.strip()}",
            fix=_FIX,
        )
    if "unauthorized" in low or "denied" in low or "authentication required" in low:
        return Failed(
            f"the registry denies access to {ref}, or has no such repository.",
            fix="Check the name; for a private one, `docker login` as the same user on the host.",
        )
    if "not found" in low or "manifest unknown" in low or "does not exist" in low or "manifest_unknown" in low:
        return NotThere(f"the registry has no {ref}.", fix=_GONE if "@" in ref else _NO_TAG)
    return Failed(f"cannot pull {ref}: {text.strip()}")
