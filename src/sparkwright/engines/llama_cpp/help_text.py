"""Parser of the options in the output of `llama-server --help`."""

from __future__ import annotations

import re
from dataclasses import dataclass

MOST_CHARS = 1 << 20
_WORD = re.compile(r"-{1,2}[A-Za-z][\w.-]*")
_BRACED = re.compile(r"{([\w-]+(?:,[\w-]+)+)}|\[(\w+(?:\|\w+)+)\]")
_ALLOWED = re.compile(r"allowed values: ([\w, ]+)")
_VARIABLE = re.compile(r"\(env: (\w+)\)")
_REMOVED = "the argument has been removed"


@dataclass(frozen=True, slots=True)
class Listed:
    """An option in the help text."""

    #: its own name, the last of the long ones
    name: str
    #: all words that switch it on, with dashes
    words: tuple[str, ...]
    #: all words that switch it off, with dashes
    off: tuple[str, ...] = ()
    #: number of words that follow
    takes: int = 0
    #: the full list of allowed words, empty for anything
    choices: tuple[str, ...] = ()
    #: environment variable with the same effect
    variable: str = ""


def listed(text: str) -> dict[str, Listed]:
    """Return the options by their own names; empty if the text is not a list of options. Removed options are left out."""
    found: dict[str, Listed] = {}
    for entry in re.split(r"\n(?=-[A-Za-z-])", "\n" + text[:MOST_CHARS]):
        option = _option(entry.strip("\n"))
        if option is not None:
            found[option.name] = option
    return found


def _option(entry: str) -> Listed | None:
    head, _, rest = entry.partition("\n")
    columns = re.split(r"\s{2,}", re.sub(r",\s+", ", ", head), maxsplit=1)
    about = " ".join([*columns[1:], rest])
    words, values = _words(columns[0])
    long = [word for word in words if word.startswith("--")]
    if not long or _REMOVED in about:
        return None
    off = _negative(words)
    on = tuple(word for word in words if word not in off)
    name = [word for word in on if word.startswith("--")][-1].removeprefix("--")
    variable = _VARIABLE.search(about)
    return Listed(name, on, off, len(values), _choices(values, about), variable[1] if variable else "")


def _negative(words: list[str]) -> tuple[str, ...]:
    """Return the words that switch the option off: those after the last long word that switches it on."""
    long = [at for at, word in enumerate(words) if word.startswith("--")]
    on = [at for at in long if not words[at].startswith("--no-")]
    return tuple(words[max(on) + 1 :]) if on and len(on) < len(long) else ()


def _words(head: str) -> tuple[list[str], list[str]]:
    """Return the option's words, and its values' placeholders."""
    parts = head.split(" ")
    at = 0
    while at < len(parts) and _WORD.fullmatch(parts[at].rstrip(",")):
        at += 1
    return [part.rstrip(",") for part in parts[:at]], _values(" ".join(parts[at:]))


def _values(written: str) -> list[str]:
    return [] if not written else [written] if written[0] in "<[{" else written.split(" ")


def _choices(values: list[str], about: str) -> tuple[str, ...]:
    allowed = _ALLOWED.search(re.sub(r"\s+", " ", about))
    braced = _BRACED.fullmatch(values[0]) if len(values) == 1 else None
    if allowed and values:
        return tuple(allowed[1].replace("default", "").replace(" ", "").strip(",").split(","))
    return tuple(re.split(r"[|,]", braced[1] or braced[2])) if braced else ()
