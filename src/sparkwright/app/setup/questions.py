"""Short questions on a terminal, with defaults. At the end of the input nothing is written."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.prompt import Prompt
from rich.text import Text

from sparkwright.console.out import say
from sparkwright.console.terminal import terminal
from sparkwright.errors import Inconclusive
from sparkwright.visible import one_line

ENDED = "the input ended; nothing was written."


def possible() -> bool:
    """Return True if standard input and output are a terminal, so that a question can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(question: str, default: str = "") -> str:
    """Ask for a line of text, with a default for an empty one. Raises Inconclusive at the end of the input."""
    shown = f"{question} [{default}]" if default else question
    try:
        answer = Prompt.ask(Text(shown), console=terminal(), default=default, show_default=False)
    except EOFError:
        raise Inconclusive(ENDED) from None
    return (answer or "").strip()


def choose(question: str, names: Sequence[str], default: int = 0) -> str:
    """Ask for one of several names, by its number or name. Any other text is returned as typed."""
    answer = ask(question, str(default + 1))
    return names[int(answer) - 1] if answer.isdecimal() and 0 < int(answer) <= len(names) else answer


def choose_one_of(question: str, names: Sequence[str]) -> str:
    """Ask until the answer is one of the names."""
    while (answer := choose(question, names)) not in names:
        say(f"'{one_line(answer, at_most=60)}' is none of them.")
    return answer


def agree(question: str, *, default: bool = True) -> bool:
    """Ask a yes or no question."""
    answer = ask(f"{question} {'[Y/n]' if default else '[y/N]'}").lower()
    return default if not answer else answer in ("y", "yes")


def typed_yes(question: str) -> bool:
    """Return True if the user typed `yes` in full, as ssh asks for a host key."""
    while (answer := ask(f"{question} (yes/no)").lower()) not in ("yes", "no"):
        say("Please type yes or no.")
    return answer == "yes"
