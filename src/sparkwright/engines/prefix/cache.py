"""The interface to an engine's reports about its prefix cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from packaging.version import Version


class PrefixCache(Protocol):
    """A reader of one engine's reports about its prefix cache. cache: the labels of its metric about it."""

    def block_tokens(self, cache: Mapping[str, str]) -> int:
        """Return the block size in which prefixes hit, in tokens; 0 if the engine reports none."""

    def is_off(self, cache: Mapping[str, str]) -> bool | None:
        """Return True if the engine reports that prefix caching is off; None if it reports nothing."""

    def is_hybrid(self, cache: Mapping[str, str]) -> bool:
        """Return True if the cache holds recurrent states too."""

    def why(self, version: Version | None) -> tuple[str, str]:
        """Return why a recurrent model may not hit, as a sentence to append, and what helps; empty strings if nothing is known."""


class Untold:
    """The reader for an engine that reports nothing about its prefix cache."""

    def block_tokens(self, cache: Mapping[str, str]) -> int:
        """See PrefixCache."""
        return 0

    def is_off(self, cache: Mapping[str, str]) -> bool | None:
        """See PrefixCache."""
        return None

    def is_hybrid(self, cache: Mapping[str, str]) -> bool:
        """See PrefixCache."""
        return False

    def why(self, version: Version | None) -> tuple[str, str]:
        """See PrefixCache."""
        return "", ""
