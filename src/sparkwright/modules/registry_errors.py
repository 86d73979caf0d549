"""What a registry, or an engine that asks one, says when it will not, as sentences."""

from __future__ import annotations

from sparkwright.errors import Failed, SparkwrightError

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
)


class RegistryDown(Failed):
    """The registry could not be asked: worth another try."""


def explain(ref: str, said: str) -> SparkwrightError:
    """The sentence for what was said about an image reference."""
    low = said.lower()
    if "no space left on device" in low:
        return Failed(
            f"the disk of the Docker engine is full: {ref} can't be pulled.",
            fix="On the host: `docker system df`, then remove what is not needed (`docker image prune`).",
        )
    if any(word in low for word in _NETWORK):
        return RegistryDown(
            f"the registry of {ref} does not answer: {said.strip()}",
            fix="Check the host's network, its DNS and proxy; a host with the image already present needs no registry.",
        )
    if "unauthorized" in low or "denied" in low or "authentication required" in low:
        return Failed(
            f"the registry denies {ref}, or has no such repository.",
            fix="Check the name; for a private one, `docker login` as the same user on the host.",
        )
    if "not found" in low or "manifest unknown" in low or "does not exist" in low:
        return Failed(
            f"the registry has no {ref}.",
            fix="Check the tag in the recipe; if a pinned digest is gone, remove its entry from spark.lock to pin anew.",
        )
    return Failed(f"{ref} can't be had from its registry: {said.strip()}")
