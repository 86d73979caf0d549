"""`vllm serve --config FILE`: the file's options are put before the others, so that the command line takes precedence.

Of YAML it reads lines with a key and a value that is JSON or a plain word: the simulated engine also runs where there is only
Python.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sparkwright.sandbox.vllm.command_line.arguments import crashed

OPTION = "--config"


def pulled(argv: Sequence[str], folder_of: Callable[[str], Path]) -> list[str]:
    """Return the arguments with --config replaced by the file's, as in 0.32.0. Raises Refused with the real engine's message."""
    words = _model_first(list(argv))
    if OPTION not in words:
        return words
    if words.count(OPTION) > 1:
        raise crashed("AssertionError: More than one config file specified!")
    at = words.index(OPTION)
    if at == len(words) - 1:
        raise crashed("ValueError: No config file specified! Please check your command-line arguments.")
    given = _words_of(words[at + 1], folder_of)
    rest = words[:at] + words[at + 2 :]
    if rest and not rest[0].startswith("-"):
        return [rest[0], *given, *rest[1:]]
    if "--model" in given:
        return [*given, *rest]
    message = "No model specified! Please specify model either as a positional argument or in a config file."
    raise crashed(f"ValueError: {message}")


def _model_first(words: list[str]) -> list[str]:
    """Return the arguments with the value of --model as the first one."""
    if "--model" not in words[:-1] or OPTION not in words:
        return words
    at = words.index("--model")
    return [words[at + 1], *words[:at], *words[at + 2 :]]


def _words_of(name: str, folder_of: Callable[[str], Path]) -> list[str]:
    if name.rpartition(".")[2] not in ("yaml", "yml"):
        raise crashed(f"ValueError: Config file must be of a yaml/yml type. {name.rpartition('.')[2]} supplied")
    try:
        lines = folder_of(name).read_text().splitlines()
    except OSError as error:
        what = f"[Errno {error.errno}] {error.strerror}: '{name}'"
        raise crashed(f"{type(error).__name__}: {what}") from None
    pairs = (line.partition(":")[::2] for line in lines if ":" in line and not line.startswith("#"))
    return [word for key, value in pairs for word in _flag(key.strip(), _value(value.strip()))]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flag(key: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{key}" if value else f"--no-{key}"]
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)] if value else []
    return [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
