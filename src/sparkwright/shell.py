"""Quoting for POSIX shells."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def join(argv: Iterable[object]) -> str:
    """Join words to a command line, with quotes where the shell needs them."""
    return shlex.join(str(word) for word in argv)


def quote(word: object) -> str:
    """Quote one word."""
    return shlex.quote(str(word))
