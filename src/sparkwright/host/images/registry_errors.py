"""Errors of a registry, or of an engine that queries one, as sentences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sparkwright.errors import Failed, SparkwrightError
from sparkwright.transport.connection import InvalidAnswer, TimedOut, TransportError, Untrusted

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
    """Convert the engine's errors about an image reference to sentences."""
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
    """Return the error for a message about an image reference, as a sentence."""
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
