"""Prompts on the terminal: confirmation of irreversible actions, and short questions with defaults."""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any

from sparkwright.console.command_output import print_text
from sparkwright.errors import Inconclusive, Refused
from sparkwright.visible import escape_invisible, one_line

#: number of invalid answers after which `ask_until_valid` gives up
MAX_TRIES = 5
#: interval at which a question that ends by itself is checked, in seconds
ANSWER_POLL_S = 0.2
#: message after a removal was declined
NOT_REMOVED_MESSAGE = "nothing was removed."
INPUT_ENDED_MESSAGE = "the input ended; nothing was written."


def confirm(question: str, *, yes: bool) -> bool:
    """Ask for confirmation on standard error, because a program may be reading standard output.

    Returns True without asking if `yes` is set, and False if there is no terminal.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        print("stdin is not a terminal; pass --yes.", file=sys.stderr)
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return _read_answer() in ("y", "yes")


def ask_to_stop(hosts: str, is_running: Callable[[], bool]) -> bool:
    """Ask after Ctrl-C whether to stop the runs at a safe point. Returns False if there is no terminal.

    The question ends when the runs have ended.
    """
    if not sys.stdin.isatty():
        return False
    question = f"\n{hosts}: leave it running (l, default) or stop it at the next safe point (s)? "
    print(question, end="", file=sys.stderr, flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        while is_running():
            if select.select([sys.stdin], [], [], ANSWER_POLL_S)[0]:
                return _read_answer().startswith("s")
    print(file=sys.stderr, flush=True)
    return False


def ask_lock_release(owner: dict[str, Any], host: str) -> str:
    """Print the owner of a host's lock and ask how to release it. Raises Refused if stdin is not a terminal.

    Returns stop, kill or forget, or "" to leave the lock.
    """
    question = (
        "[s]top it at the next safe point, [k]ill it, or [l]eave it? "
        if owner["alive"]
        else "Its process is gone. Clear the lock? [y/N] "
    )
    print_text(owner["text"])
    if not sys.stdin.isatty():
        options = "`--stop` or `--kill`" if owner["alive"] else "`--stop`"
        raise Refused(f"stdin is not a terminal; pass {options}.", where=host)
    answer = _read_answer(question)[:1]
    return {"s": "stop", "k": "kill"}.get(answer, "") if owner["alive"] else "forget" if answer == "y" else ""


def ask_until_valid(question: str, choices: Sequence[str]) -> str:
    """Ask a question without a default until the answer is valid. Raises Refused after MAX_TRIES, or if the input ends."""
    choices_hint = f" [{'|'.join(choices)}]" if choices else ""
    for _ in range(MAX_TRIES):
        print(f"{escape_invisible(question)}{choices_hint}: ", end="", file=sys.stderr, flush=True)
        try:
            answer = _read_line("").strip()
        except EOFError:
            break
        if answer and (not choices or answer in choices):
            return answer
    raise Refused("no valid answer was given.", fix="Nothing was written.")


def _read_answer(question: str = "") -> str:
    """Return the answer in lowercase; empty at the end of the input or after Ctrl-C."""
    try:
        return _read_line(question).strip().lower()
    except (EOFError, KeyboardInterrupt):
        return ""


def _read_line(question: str) -> str:
    """Read a line of input. After Ctrl-C or Ctrl-D, end the question's line, so that the next message has its own."""
    try:
        return input(question)
    except (EOFError, KeyboardInterrupt):
        print(file=sys.stderr, flush=True)
        raise


def can_prompt() -> bool:
    """Return True if standard input and output are terminals."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def ask(question: str, default: str = "") -> str:
    """Ask for a line of text; an empty line selects the default. Raises Inconclusive at the end of the input."""
    prompt = f"{question} [{default}]" if default else question
    try:
        return _read_line(f"{escape_invisible(prompt)}: ").strip() or default
    except EOFError:
        raise Inconclusive(INPUT_ENDED_MESSAGE) from None


def choose(question: str, names: Sequence[str]) -> str:
    """Ask for one of several names, by number or name; the default is the first. Any other text is returned as typed."""
    answer = ask(question, "1")
    return names[int(answer) - 1] if answer.isdecimal() and 0 < int(answer) <= len(names) else answer


def choose_exactly(question: str, names: Sequence[str]) -> str:
    """Ask until the answer is one of the names."""
    while (answer := choose(question, names)) not in names:
        print_text(f"'{one_line(answer, max_chars=60)}' is not in the list.")
    return answer


def ask_yes_no(question: str, *, default: bool = True) -> bool:
    """Ask a yes-or-no question."""
    answer = ask(f"{question} {'[Y/n]' if default else '[y/N]'}").lower()
    return default if not answer else answer in ("y", "yes")


def ask_full_yes(question: str) -> bool:
    """Ask until the answer is `yes` or `no` in full, as ssh does for a host key. Returns True for `yes`."""
    while (answer := ask(f"{question} (yes/no)").lower()) not in ("yes", "no"):
        print_text("Please type yes or no.")
    return answer == "yes"
