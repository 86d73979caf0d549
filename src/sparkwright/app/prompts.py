"""What a person is asked before something is done that can't be taken back."""

from __future__ import annotations

import sys
from typing import Any

from sparkwright.console.out import say
from sparkwright.errors import Refused


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


def lock_release(owner: dict[str, Any]) -> str:
    """What to do about who holds a lock: stop, kill or forget; empty to leave it. Without a terminal Refused, having said who."""
    question = "[s]top it at the next safe point, [k]ill it, or [l]eave it? " if owner["alive"] else "Forget it? [y/n] "
    say(owner["text"])
    if not sys.stdin.isatty():
        words = "`--stop` or `--kill`" if owner["alive"] else "`--stop`"
        raise Refused(f"stdin is not a terminal; pass {words}.")
    try:
        answer = input(question).strip().lower()[:1]
    except (EOFError, KeyboardInterrupt):
        return ""
    return {"s": "stop", "k": "kill"}.get(answer, "") if owner["alive"] else "forget" if answer == "y" else ""
