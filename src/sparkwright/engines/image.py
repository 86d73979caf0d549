"""What an engine's image tells of the engine in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Image(Protocol):
    """How an image is asked for the version and the options of its engine.

    Options are shapes by name, as one release of the engine lists them; they are kept as what differs from a release that is known.
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
        """What is kept of them."""

    def is_current(self, difference: Mapping[str, Any] | None) -> bool:
        """Whether `applied` can use what was kept, or nothing was to be had; else the image is to be asked again."""

    def applied(self, difference: Mapping[str, Any] | None) -> dict[str, str]:
        """The options again; empty where none were kept."""
