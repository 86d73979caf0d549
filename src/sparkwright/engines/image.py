"""The interface to the version and the options of the engine in an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Image(Protocol):
    """Commands that print the version and the options of an image's engine, and readers of their output.

    Options are shapes by name, as one release of the engine lists them; they are stored as the difference from a known release.
    """

    @property
    def ASK_VERSION(self) -> tuple[str, ...]:
        """The program, and the words with which it prints its version."""

    @property
    def ASK_OPTIONS(self) -> tuple[str, ...]:
        """The program, and the words with which it lists its options."""

    def version_of(self, config: Mapping[str, Any]) -> str | None:
        """The version that an image's Config states; None when it states none."""

    def version_in(self, text: str) -> str | None:
        """The version that ASK_VERSION printed."""

    def listed(self, text: str) -> dict[str, str]:
        """The options that ASK_OPTIONS printed; empty when it is no such list."""

    def difference(self, shapes: Mapping[str, str]) -> dict[str, Any]:
        """Return the options as they are stored: as the difference from a known release."""

    def is_current(self, difference: Mapping[str, Any] | None) -> bool:
        """Return True if `applied` can use the stored difference, or the image listed no options; else run the image again."""

    def applied(self, difference: Mapping[str, Any] | None) -> dict[str, str]:
        """The options again; empty where none were kept."""
