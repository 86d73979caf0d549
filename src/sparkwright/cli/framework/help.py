"""The output of `--help` and `--list`: the commands by group, and a command's options and examples."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from sparkwright.cli.help_groups import COMMAND_NAMES, GROUPS, find_examples
from sparkwright.program import rewrite_commands

#: limits on the width of the text, in columns
MAX_WIDTH, MIN_WIDTH = 100, 60
#: maximum width of the column of names; the text for a longer name begins on the next line
MAX_NAME_WIDTH = 24
#: placeholders for option values, if they differ from the option's name
PLACEHOLDERS = {"update": "NAME", "a": "RECIPE", "b": "RECIPE", "serial": "SIZE", "help": "COMMAND", "list": "GROUP"}
#: a name and its text
Row = tuple[str, str]


def format_command_list(collection: Any, root: str = "") -> str:
    """Return the commands by group, one per line.

    Args:
        root: name of the collection to list; empty for all.
    """
    tasks = {name: task for name, task in walk_tasks(collection) if name.startswith(f"{root}." if root else "")}
    groups = {title: [name for name in commands if name in tasks] for title, commands in GROUPS.items()}
    groups["Other tasks"] = sorted(set(tasks) - set(COMMAND_NAMES))  # from the user's tasks.py
    display_names = {name: display_name(collection, name) for name in tasks}
    width = max(map(len, display_names.values()), default=0)
    parts = []
    for title, names in groups.items():
        rows = [f"  {display_names[name]:<{width}}  {first_line(tasks[name])}".rstrip() for name in names]
        parts += ["\n".join([f"{title}:", *rows, ""])] if rows else []
    return "\n".join(parts)


def program_help(binary: str, options: Iterable[Any], collection: Any) -> str:
    """Return the text of `sparkwright --help`.

    Args:
        options: options that come before a command.
    """
    lines = [
        f"Usage: {binary} COMMAND [options]",
        "",
        format_command_list(collection),
        "Options:",
        *_format_options(options),
        "",
    ]
    return "\n".join([*lines, f"`{binary} COMMAND --help` shows a command's options and two examples.", ""])


def _format_options(options: Iterable[Any]) -> list[str]:
    return format_columns([(format_option(option), option.help or "") for option in options])


def command_help(binary: str, name: str, collection: Any, context: Any) -> str:
    """Return the text of a command's --help.

    Args:
        context: the command's options, as Invoke parses them.
    """
    task = collection[name]
    word = getattr(task, "word", "")
    words = [option for option in context.args.values() if option.positional]
    flags = [
        option
        for option in context.args.values()
        if not option.positional and word not in (option.name, option.attr_name)
    ]
    shown_name = display_name(collection, name)
    usage = [*(option.name.upper() for option in words), *([f"[{word.upper()}]"] if word else []), "[options]"]
    lines = [f"Usage: {binary} {shown_name} {' '.join(usage)}", ""]
    lines += [*wrap_paragraphs(inspect.getdoc(task) or ""), ""]
    if words or word:
        arguments = [*words, *([context.args[word]] if word else [])]
        lines += ["Arguments:", *format_columns([(option.name.upper(), option.help or "") for option in arguments]), ""]
    lines += ["Options:", *_format_options(flags), ""]
    if examples := find_examples(name):
        lines += [
            "Examples:",
            *(f"  {rewrite_commands(f'invoke {shown_name} {arguments}').rstrip()}" for arguments in examples),
            "",
        ]
    return "\n".join(lines)


def walk_tasks(collection: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all tasks with their full names, for example `bench.serve`."""
    for name, task in collection.tasks.items():
        yield prefix + name, task
    for name, subcollection in collection.collections.items():
        yield from walk_tasks(subcollection, f"{prefix}{name}.")


def display_name(collection: Any, name: str) -> str:
    """Return the shortest name of a command, for example `health` for `health.check`."""
    group, _, command_name = name.rpartition(".")
    return group if group and collection.subcollection_from_path(group).default == command_name else name


def first_line(task: Any) -> str:
    """Return the first line of a task's docstring."""
    return (inspect.getdoc(task) or "").partition("\n")[0]


def format_option(option: Any) -> str:
    """Return the usage of an option: `-H, --host HOST`, `--tags TAGS`, `--no-rollback`, `--update[=NAME]`."""
    if option.kind is bool and option.default is True:
        return f"    --no-{option.name.replace('_', '-')}"
    names = [name.replace("_", "-") for name in option.names]
    short_name = next((name for name in names if len(name) == 1), "")
    long_name = next((name for name in names if len(name) > 1), "")
    value_usage = (
        ""
        if option.kind is bool
        else f"[={_format_placeholder(option)}]"
        if option.optional
        else f" {_format_placeholder(option)}"
    )
    if not long_name:
        return f"-{short_name}{value_usage}"
    return f"{f'-{short_name},' if short_name else '   '} --{long_name}{value_usage}"


def _format_placeholder(option: Any) -> str:
    name = option.names[0].replace("_", "-")
    return "N" if option.kind in (int, float) else PLACEHOLDERS.get(name) or name.rpartition("-")[2].upper()


def _terminal_width() -> int:
    return max(min(shutil.get_terminal_size().columns, MAX_WIDTH), MIN_WIDTH)


def wrap_paragraphs(doc: str) -> list[str]:
    """Return the lines of a docstring's paragraphs, wrapped to the terminal's width."""
    paragraphs = [textwrap.wrap(text, _terminal_width() - 2, break_on_hyphens=False) for text in doc.split("\n\n")]
    return [line for text in paragraphs for line in ("", *(f"  {line}" for line in text))][1:]


def format_columns(rows: list[Row]) -> list[str]:
    """Return lines with names and texts side by side, with the texts wrapped to the terminal's width."""
    width = max((len(name) for name, _ in rows if len(name) <= MAX_NAME_WIDTH), default=0)
    text_width = _terminal_width() - width - 4
    lines = []
    for name, text in rows:
        text_lines = textwrap.wrap(text, text_width, break_on_hyphens=False) or [""]
        first_line_text = f"  {name:<{width}}  {text_lines.pop(0)}" if len(name) <= width else f"  {name}"
        lines += [first_line_text.rstrip(), *(f"  {'':<{width}}  {line}" for line in text_lines)]
    return lines or ["  none"]
