"""The words of a described server's command are its own: nothing of them is known."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.engines.command_words import Command


def parsed(words: Sequence[str]) -> Command:
    """No model and no flags."""
    return Command()
