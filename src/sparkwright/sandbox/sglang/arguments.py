"""The arguments of a simulated `sglang serve`: the parser of 0.5.23, made from the table of its options."""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Sequence
from typing import Any, NoReturn

from sparkwright.engines.sglang import flag_values, options

PROGRAM = "sglang serve"
#: width of the help, about that of a container's log
COLUMNS = 100
NO_MODEL = "Exception: Error: --model-path is required. Please provide the path to the model."


class Refused(Exception):
    """The server exits with these log lines and this exit code."""

    def __init__(self, *lines: str, code: int = 1) -> None:
        super().__init__(lines[-1])
        self.lines = lines
        self.code = code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(*self.format_usage().splitlines(), f"{self.prog}: error: {message}", code=2)


def human_readable_int(value: str) -> int:
    """Parse 128, 128k or 128Ki. The parser names this function in its error, as the real one does."""
    found = flag_values.number(value)
    if found is None:
        raise ValueError(value)
    return found


def parsed(words: Sequence[str]) -> dict[str, Any]:
    """Return all arguments by name with underscores; None for those not given. Raises Refused."""
    words = list(words)
    if words and not words[0].startswith("-"):
        words[:1] = ["--model-path", words[0]]
    if not any(word.partition("=")[0] in ("--model-path", "--model") for word in words):
        raise Refused("Traceback (most recent call last):", NO_MODEL)
    return vars(_parser().parse_args(words))


def help_text() -> str:
    """Return the output of `sglang serve --help`: a general part, then options for language models and for diffusion models."""
    general = "Usage: sglang serve <model-name-or-path> [additional-arguments]\n\n--- Help for Standard Language Model Server ---"
    return f"{general}\n{_parser().format_help()}\n--- Help for Diffusion Model Server ---\nusage: sglang serve [-h]\n"


@functools.lru_cache(maxsize=1)
def _parser() -> _Parser:
    made = _Parser(prog=PROGRAM, formatter_class=functools.partial(argparse.HelpFormatter, width=COLUMNS))
    for name, kind in flag_values.kinds().items():
        spelled = [f"--{item}" for item in (name, *(alias for alias, own in options.ALIASES.items() if own == name))]
        made.add_argument(*spelled, dest=name.replace("-", "_"), **_takes(name, kind))
    return made


def _takes(name: str, kind: str) -> dict[str, Any]:
    """Return the keyword arguments of `add_argument` for an option of this kind."""
    if kind == "switch":
        return {"action": "store_true"}
    if kind == "both":
        return {"action": argparse.BooleanOptionalAction}
    types = {"int": int, "float": float, "size": human_readable_int, "json": json.loads}
    more: dict[str, Any] = {"nargs": "+"} if kind == "list" else {}
    more |= {"choices": options.CHOICES[name]} if name in options.CHOICES else {}
    return {"type": types.get(kind, str), **more}
