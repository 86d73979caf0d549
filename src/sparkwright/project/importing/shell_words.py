"""Splitting of a foreign command line into words. Nothing is run: anything that needs a shell is refused by name."""

from __future__ import annotations

import re
import shlex

from sparkwright.errors import Refused
from sparkwright.project.importing.foreign import MOST_CHARS, MOST_WORDS
from sparkwright.trust import secret_patterns
from sparkwright.visible import one_line

#: shell syntax, with its names
OPERATORS = {
    "|": "a pipe",
    "&": "`&` or `&&`",
    ";": "`;`",
    "<": "a redirection",
    ">": "a redirection",
    "(": "a subshell",
}
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_VARIABLE = re.compile(r"\$(?:\{[^}]{0,200}\}|[A-Za-z_]\w{0,100})")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w{0,100}=")
SHELLS = frozenset(("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash"))


def split(line: str) -> list[str]:
    """Return the words of one command. Raises Refused for several commands, and for anything that a shell would run or expand."""
    if len(line) > MOST_CHARS:
        raise Refused(f"the command line is longer than {MOST_CHARS} characters.")
    joined = _CONTINUED.sub(" ", line).rstrip().rstrip("\\").strip()
    _refuse_shell(joined)
    try:
        words = shlex.split(joined, comments=False)
    except ValueError as error:
        raise Refused(f"the command line cannot be split into words: {str(error).lower()}.") from None
    if len(words) > MOST_WORDS:
        raise Refused(f"the command line has more than {MOST_WORDS} words.")
    return words


def unwrapped(words: list[str]) -> list[str]:
    """Return the words of a command given to a shell as text (`bash -c "vllm serve ..."`), without `exec`."""
    if len(words) >= 3 and words[0] in SHELLS and words[1].startswith("-") and words[1].endswith("c"):
        words = split(words[2])
    return words[1:] if words[:1] == ["exec"] else words


def assignments(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables before a command (`A=1 vllm serve ...`, also after `env`), and the command."""
    rest = words[1:] if words[:1] == ["env"] else list(words)
    found: dict[str, str] = {}
    while rest and _ASSIGNMENT.match(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        found[name] = value
    return found, rest


def variables(word: str) -> list[str]:
    """Return the shell variables in a word, as $HOME or ${HOME}."""
    return _VARIABLE.findall(word)


def _refuse_shell(line: str) -> None:
    """Raise Refused for the first shell syntax outside of quotes."""
    quote, skip = "", False
    for n, letter in enumerate(line):
        if skip:
            skip = False
        elif letter == "\\" and quote != "'":
            skip = True
        elif letter in "\"'" and quote in ("", letter):
            quote = "" if quote else letter
        elif quote == "'":
            continue
        elif letter == "`" or line.startswith("$(", n):
            raise _refused("a command in its place (`$(...)`)", line, n)
        elif not quote and letter == "\n":
            raise _refused("a second command, on a line of its own", line, n)
        elif not quote and letter in OPERATORS:
            raise _refused(OPERATORS[letter], line, n)


def _refused(what: str, line: str, at: int) -> Refused:
    # what follows may be the rest of a key that has this sign in it
    near = one_line(secret_patterns.text(line[:at])[-20:] + line[at : at + 1], at_most=60)
    fix = (
        "Nothing of an imported recipe is run: take out what only a shell does, and import the one command that serves."
    )
    return Refused(f"the command has {what}, at '{near}'.", fix=fix)
