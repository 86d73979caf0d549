"""The layout of help: options as they are typed, texts in columns, wrapped to the terminal's width."""

from __future__ import annotations

import shutil
import textwrap
from typing import Any

WIDEST, LEAST = 100, 60
#: a longer name gets a line of its own
NAMES_WIDTH = 24
#: names of options' values that differ from the option's name
VALUES = {"update": "NAME", "a": "RECIPE", "b": "RECIPE", "serial": "SIZE", "help": "COMMAND", "list": "GROUP"}
Row = tuple[str, str]


def spelled(option: Any) -> str:
    """Return an option as it is typed: `-H, --host HOST`, `--tags TAGS`, `--no-rollback`, `--update[=NAME]`."""
    if option.kind is bool and option.default is True:
        return f"    --no-{option.name.replace('_', '-')}"
    names = [name.replace("_", "-") for name in option.names]
    short = next((name for name in names if len(name) == 1), "")
    long = next((name for name in names if len(name) > 1), "")
    value = "" if option.kind is bool else f"[={_value(option)}]" if option.optional else f" {_value(option)}"
    if not long:
        return f"-{short}{value}"
    return f"{f'-{short},' if short else '   '} --{long}{value}"


def _value(option: Any) -> str:
    name = option.names[0].replace("_", "-")
    return "N" if option.kind in (int, float) else VALUES.get(name) or name.rpartition("-")[2].upper()


def _width() -> int:
    return max(min(shutil.get_terminal_size().columns, WIDEST), LEAST)


def folded(doc: str) -> list[str]:
    """Return a docstring's paragraphs, wrapped to the terminal's width."""
    paragraphs = [textwrap.wrap(text, _width() - 2, break_on_hyphens=False) for text in doc.split("\n\n")]
    return [line for text in paragraphs for line in ("", *(f"  {line}" for line in text))][1:]


def columns(rows: list[Row]) -> list[str]:
    """Return names and texts side by side, with the texts wrapped to the terminal's width."""
    width = max((len(name) for name, _ in rows if len(name) <= NAMES_WIDTH), default=0)
    space = _width() - width - 4
    lines = []
    for name, text in rows:
        texts = textwrap.wrap(text, space, break_on_hyphens=False) or [""]
        first = f"  {name:<{width}}  {texts.pop(0)}" if len(name) <= width else f"  {name}"
        lines += [first.rstrip(), *(f"  {'':<{width}}  {line}" for line in texts)]
    return lines or ["  none"]
