"""Sparkwright's commands as Invoke tasks, with short options, default help texts and exit codes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from inspect import Parameter, Signature
from typing import Any

from invoke.tasks import Task

from sparkwright.app.outcome import handle_errors

#: name, default and help of an option. The default () means that it may be repeated.
Option = tuple[str, str | bool | int | tuple[()], str]
Body = Callable[..., int | Sequence[int] | None]
#: the last option of every command
DEBUG_OPTION = Parameter("debug", Parameter.KEYWORD_ONLY, default=False)

#: short options, the same for all commands: Fabric's -H, Ansible's -C, -D and -v, Invoke's -d
SHORT_OPTIONS = {"host": "H", "check": "C", "diff": "D", "json": "j", "verbose": "v", "debug": "d"}

#: default help texts of common options
DEFAULT_HELP = {
    "host": "a host, a group, several (spark1,spark2), or all",
    "recipe": "on a host with several servers: only the one of this recipe",
    "json": "print JSON on stdout, one object per line",
    "debug": "show the traceback of an error",
}


class Command(Task[Any]):
    """A sparkwright command as an Invoke task."""

    #: option that an optional word after the command sets (`explain [RULE]`)
    word = ""

    def argspec(self, body: Callable[..., Any]) -> Signature:
        """Return the signature of a command's function, which has no parameter for Invoke's context, with --debug added."""
        signature = inspect.signature(body)
        return signature.replace(parameters=[*signature.parameters.values(), DEBUG_OPTION])

    def arg_opts(self, name: str, default: str, taken_names: set[str]) -> dict[str, Any]:
        """Return an option in Invoke's form, with its short name and help."""
        options: dict[str, Any] = super().arg_opts(name, default, taken_names)
        if name in SHORT_OPTIONS:
            options["names"] = [*options["names"], SHORT_OPTIONS[name]]
        return {"help": DEFAULT_HELP.get(name), **options}

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Any]:
        """Return all options. The help texts, which Invoke clears, are restored."""
        help_texts = self.help.copy()
        try:
            return list(super().get_arguments(ignore_unknown_help))
        finally:
            self.help = help_texts


def command(
    *,
    name: str | None = None,
    help: dict[str, str] | None = None,
    positional: Iterable[str] = (),
    optional: Iterable[str] = (),
    iterable: Iterable[str] = (),
    word: str = "",
    default: bool = False,
) -> Callable[[Body], Command]:
    """Turn a function into a command. Its docstring is the help; lists show its first line.

    The examples are in help_groups.py.

    Args:
        optional: options whose value may be left out.
        iterable: options that may be repeated.
        default: run this command if only the collection is named.
    """

    def decorate(body: Body) -> Command:
        task = Command(
            handle_errors(body),
            name=name,
            help=help,
            positional=positional,
            optional=optional,
            iterable=iterable,
            default=default,
            auto_shortflags=False,
        )
        task.word = word
        return task

    return decorate


def build_command(body: Body, name: str, doc: str, options: Sequence[Option], *positional: str) -> Command:
    """Build a command from a table of options, from which Invoke derives the function's signature.

    Args:
        positional: names of the options that are words without a flag.
    """
    run = handle_errors(body)
    run.__name__, run.__doc__ = name, doc
    defaults = {
        option: Parameter.empty if option in positional else None if default == () else default
        for option, default, _ in options
    }
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name.replace("-", "_"), Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()]
    )
    help_texts = {option.replace("_", "-"): text for option, _, text in options}
    repeatable = [option.replace("-", "_") for option, default, _ in options if default == ()]
    return Command(run, name=name, positional=positional, iterable=repeatable, help=help_texts, auto_shortflags=False)
