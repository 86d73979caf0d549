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
        """The program and arguments that print the version."""

    @property
    def ASK_OPTIONS(self) -> tuple[str, ...]:
        """The program and arguments that list the options."""

    def version_of(self, config: Mapping[str, Any]) -> str | None:
        """Return the version in an image's Config; None if it holds none."""

    def version_in(self, text: str) -> str | None:
        """Return the version in the output of ASK_VERSION."""

    def listed(self, text: str) -> dict[str, str]:
        """Return the options in the output of ASK_OPTIONS; empty if it is not a list of options."""

    def difference(self, shapes: Mapping[str, str]) -> dict[str, Any]:
        """Return the options as they are stored: as the difference from a known release."""

    def is_current(self, difference: Mapping[str, Any] | None) -> bool:
        """Return True if `applied` can use the stored difference, or the image listed no options; else run the image again."""

    def applied(self, difference: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the options from a stored difference; empty if none was stored."""
