"""Read the build and options of an image's llama-server from the program's output, not from the image's tag."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sparkwright.engines.llama_cpp import flags
from sparkwright.engines.option_table import ListedOptions

MAX_HELP_CHARS = 1 << 20
_OPTION_PATTERN = re.compile(r"-{1,2}[A-Za-z][\w.-]*")
_BRACED_CHOICES_PATTERN = re.compile(r"{([\w-]+(?:,[\w-]+)+)}|\[(\w+(?:\|\w+)+)\]")
_ALLOWED_VALUES_PATTERN = re.compile(r"allowed values: ([\w, ]+)")
_VARIABLE_PATTERN = re.compile(r"\(env: (\w+)\)")
_REMOVAL_NOTE = "the argument has been removed"


@dataclass(frozen=True, slots=True)
class ListedOption:
    """An option in the help text."""

    #: canonical name: the last long name
    name: str
    #: spellings that switch it on, with dashes
    words: tuple[str, ...]
    #: spellings that switch it off, with dashes
    off: tuple[str, ...] = ()
    #: number of values that follow it
    value_count: int = 0
    #: allowed values; empty if all are allowed
    choices: tuple[str, ...] = ()
    #: environment variable with the same effect
    variable: str = ""


def parse_help(text: str) -> dict[str, ListedOption]:
    """Return the options in a help text by canonical name, except removed ones; empty if the text is not a list of options."""
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
    words, placeholders = _split_head(columns[0])
    if not any(word.startswith("--") for word in words) or _REMOVAL_NOTE in description:
        return None
    off_words = _off_words(words)
    on_words = tuple(word for word in words if word not in off_words)
    name = [word for word in on_words if word.startswith("--")][-1].removeprefix("--")
    variable = _VARIABLE_PATTERN.search(description)
    choices = _parse_choices(placeholders, description)
    return ListedOption(name, on_words, off_words, len(placeholders), choices, variable[1] if variable else "")


def _off_words(words: list[str]) -> tuple[str, ...]:
    """Return the words that switch the option off, which follow the last long word that switches it on."""
    long_indexes = [index for index, word in enumerate(words) if word.startswith("--")]
    on_indexes = [index for index in long_indexes if not words[index].startswith("--no-")]
    return tuple(words[max(on_indexes) + 1 :]) if on_indexes and len(on_indexes) < len(long_indexes) else ()


def _split_head(head: str) -> tuple[list[str], list[str]]:
    """Return the option's spellings, and the placeholders of its values."""
    words = head.split(" ")
    count = 0
    while count < len(words) and _OPTION_PATTERN.fullmatch(words[count].rstrip(",")):
        count += 1
    placeholder_text = " ".join(words[count:]).strip()
    placeholders = [placeholder_text] if placeholder_text.startswith(("<", "[", "{")) else placeholder_text.split()
    return [word.rstrip(",") for word in words[:count]], placeholders


def _parse_choices(placeholders: list[str], description: str) -> tuple[str, ...]:
    allowed_match = _ALLOWED_VALUES_PATTERN.search(re.sub(r"\s+", " ", description))
    braced_match = _BRACED_CHOICES_PATTERN.fullmatch(placeholders[0]) if len(placeholders) == 1 else None
    if allowed_match and placeholders:
        return tuple(allowed_match[1].replace("default", "").replace(" ", "").strip(",").split(","))
    return tuple(re.split(r"[|,]", braced_match[1] or braced_match[2])) if braced_match else ()


#: entrypoint of the official image
PROGRAM = "/app/llama-server"
VERSION_COMMAND = (PROGRAM, "--version")
HELP_COMMAND = (PROGRAM, "--help")
REFERENCE_BUILD = f"b{flags.NEWEST_BUILD}"
#: "version: 10434 (7e4c0a9)"; in later builds "version: 0.1.0-dev (build 10434, commit 7e4c0a9)"
_VERSION_PATTERN = re.compile(r"^version: (?:\S+ \(build )?(\d{4,6})\b", re.M)


def version_of(config: Mapping[str, Any]) -> str | None:
    """Return None: no label or variable of the images contains the build."""
    return None


def parse_version(text: str) -> str | None:
    """Return the build in the output of `llama-server --version`, such as "b11549"; None if there is none."""
    match = _VERSION_PATTERN.search(text)
    return f"b{match[1]}" if match else None


def parse_options(text: str) -> dict[str, str]:
    """Return the number of values of each option in a help text; empty if the text is not a list of options."""
    return {name: str(option.value_count) for name, option in parse_help(text).items()}


@lru_cache(maxsize=1)
def reference_shapes() -> Mapping[str, str]:
    """Return the number of values of each option of the newest build in options.json."""
    value_counts = {"switch": "0", "bare": "0", "two": "2"}
    return {
        name: value_counts.get(option.kind, "1")
        for name, option in flags.TABLE.all_options.items()
        if flags.exists(name, flags.NEWEST_BUILD)
    }


_STORED_OPTIONS = ListedOptions(REFERENCE_BUILD, reference_shapes)
difference, is_current, restore_options = (
    _STORED_OPTIONS.difference,
    _STORED_OPTIONS.is_current,
    _STORED_OPTIONS.restore_options,
)
