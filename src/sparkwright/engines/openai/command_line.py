"""Parser of a described server's command: its words are unknown."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.engines.flags import Command


def parsed(words: Sequence[str]) -> Command:
    """Return neither model nor flags."""
    return Command()
