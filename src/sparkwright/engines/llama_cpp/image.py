"""Readers of the build and the options of the llama-server in an image. Never guessed from the tag."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sparkwright.engines.llama_cpp import flags
from sparkwright.engines.option_table import ListedOptions

MAX_HELP_CHARS = 1 << 20
_WORD = re.compile(r"-{1,2}[A-Za-z][\w.-]*")
_BRACED = re.compile(r"{([\w-]+(?:,[\w-]+)+)}|\[(\w+(?:\|\w+)+)\]")
_ALLOWED = re.compile(r"allowed values: ([\w, ]+)")
_VARIABLE = re.compile(r"\(env: (\w+)\)")
_REMOVED = "the argument has been removed"


@dataclass(frozen=True, slots=True)
class ListedOption:
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


def parse_help(text: str) -> dict[str, ListedOption]:
    """Return the options by their own names; empty if the text is not a list of options. Removed options are left out."""
    options: dict[str, ListedOption] = {}
    for entry in re.split(r"\n(?=-[A-Za-z-])", "\n" + text[:MAX_HELP_CHARS]):
        option = _parse_option(entry.strip("\n"))
        if option is not None:
            options[option.name] = option
    return options


def _parse_option(entry: str) -> ListedOption | None:
    head, _, further_lines = entry.partition("\n")
    columns = re.split(r"\s{2,}", re.sub(r",\s+", ", ", head), maxsplit=1)
    description = " ".join([*columns[1:], further_lines])
    words, values = _split_head(columns[0])
    long = [word for word in words if word.startswith("--")]
    if not long or _REMOVED in description:
        return None
    off = _off_words(words)
    on = tuple(word for word in words if word not in off)
    name = [word for word in on if word.startswith("--")][-1].removeprefix("--")
    variable = _VARIABLE.search(description)
    return ListedOption(
        name, on, off, len(values), _parse_choices(values, description), variable[1] if variable else ""
    )


def _off_words(words: list[str]) -> tuple[str, ...]:
    """Return the words that switch the option off: those after the last long word that switches it on."""
    long = [at for at, word in enumerate(words) if word.startswith("--")]
    on = [at for at in long if not words[at].startswith("--no-")]
    return tuple(words[max(on) + 1 :]) if on and len(on) < len(long) else ()


def _split_head(head: str) -> tuple[list[str], list[str]]:
    """Return the option's words, and its values' placeholders."""
    parts = head.split(" ")
    position = 0
    while position < len(parts) and _WORD.fullmatch(parts[position].rstrip(",")):
        position += 1
    return [part.rstrip(",") for part in parts[:position]], _placeholders(" ".join(parts[position:]))


def _placeholders(text: str) -> list[str]:
    return [] if not text else [text] if text[0] in "<[{" else text.split(" ")


def _parse_choices(values: list[str], description: str) -> tuple[str, ...]:
    allowed = _ALLOWED.search(re.sub(r"\s+", " ", description))
    braced = _BRACED.fullmatch(values[0]) if len(values) == 1 else None
    if allowed and values:
        return tuple(allowed[1].replace("default", "").replace(" ", "").strip(",").split(","))
    return tuple(re.split(r"[|,]", braced[1] or braced[2])) if braced else ()


#: the official image's entrypoint
PROGRAM = "/app/llama-server"
ASK_VERSION = (PROGRAM, "--version")
ASK_OPTIONS = (PROGRAM, "--help")
REFERENCE_BUILD = f"b{flags.NEWEST_BUILD}"
#: "version: 10434 (7e4c0a9)", and later "version: 0.1.0-dev (build 10434, commit 7e4c0a9)"
_VERSION = re.compile(r"^version: (?:\S+ \(build )?(\d{4,6})\b", re.M)


def version_of(config: Mapping[str, Any]) -> str | None:
    """Return None: the image's labels and variables do not name the build."""
    return None


def parse_version(text: str) -> str | None:
    """Return the build in the output of `llama-server --version`, as b11549."""
    match = _VERSION.search(text)
    return f"b{match[1]}" if match else None


def parse_options(text: str) -> dict[str, str]:
    """Return the options in a help text with the number of words that each takes; empty if it is not a list of options."""
    return {name: str(option.takes) for name, option in parse_help(text).items()}


@lru_cache(maxsize=1)
def reference_shapes() -> Mapping[str, str]:
    """Return the options of the newest build in options.json, with the number of words that each takes."""
    takes = {"switch": "0", "bare": "0", "two": "2"}
    return {
        name: takes.get(option.kind, "1")
        for name, option in flags.TABLE.known.items()
        if flags.exists(name, flags.NEWEST_BUILD)
    }


_STORED = ListedOptions(REFERENCE_BUILD, reference_shapes)
difference, is_current, restore_options = _STORED.difference, _STORED.is_current, _STORED.restore_options
