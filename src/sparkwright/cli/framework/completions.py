"""The commands of a collection as shells complete them."""

from __future__ import annotations

from typing import Any

from sparkwright.app.completion.script import WORDS, Command, Option, kind_of
from sparkwright.cli.framework.help import first_line, spoken
from sparkwright.cli.help_groups import NAMES


def of(collection: Any) -> list[Command]:
    """Return every command, in the order of `--help`."""
    contexts = {context.name: context for context in collection.to_contexts()}
    return [
        Command(
            spoken(collection, name),
            first_line(collection[name]),
            tuple(
                _option(name, option)
                for option in contexts[name].args.values()
                if not option.positional and option.name != collection[name].word
            ),
            WORDS.get(name, ""),
        )
        for name in NAMES
    ]


def _option(command: str, option: Any) -> Option:
    names = [name.replace("_", "-") for name in option.names]
    if option.kind is bool and option.default is True:
        names = [f"no-{names[0]}"]
    flags = sorted((f"-{name}" if len(name) == 1 else f"--{name}" for name in names), key=len)
    takes = "" if option.kind is bool else kind_of(command, names[0])
    return Option(tuple(flags), option.help or "", takes)
