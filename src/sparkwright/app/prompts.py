"""A person's yes before something is done that can't be taken back."""

from __future__ import annotations

import sys


def agreed(question: str, *, yes: bool) -> bool:
    """Ask on standard error, for standard output may be a program's. yes: agreed beforehand. Without a terminal it is a no."""
    if yes:
        return True
    if not sys.stdin.isatty():
        print("stdin is not a terminal; pass --yes.", file=sys.stderr)
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        return input().strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        return False
