"""Quoting for shell commands: the only place where words become one."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def join(argv: Iterable[object]) -> str:
    """Return a command line for a POSIX shell from its words; each word arrives unchanged, whatever it holds."""
    return shlex.join(str(word) for word in argv)


def quote(word: object) -> str:
    """Return one word quoted for a POSIX shell."""
    return shlex.quote(str(word))
