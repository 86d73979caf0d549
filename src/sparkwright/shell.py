"""The one place where words become a shell command."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def join(argv: Iterable[object]) -> str:
    """A command line for a POSIX shell from its words; each word arrives as it is, whatever it holds."""
    return shlex.join(str(word) for word in argv)


def quote(word: object) -> str:
    """One word for a POSIX shell."""
    return shlex.quote(str(word))
