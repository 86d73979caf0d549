"""Commands as Invoke tasks: short options for the common five, help for the usual options, and exit codes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any

from invoke.tasks import Task

from sparkwright.app.outcome import reporting

#: name, default and help. The default () marks an option that may be given several times.
Option = tuple[str, str | bool | int | tuple[()], str]
Body = Callable[..., int | Sequence[int] | None]
#: the last option of every command
DEBUG = Parameter("debug", Parameter.KEYWORD_ONLY, default=False)

#: all short options, the same in all commands: Fabric's -H, Ansible's -C, -D and -v, Invoke's -d
SHORT = {"host": "H", "check": "C", "diff": "D", "json": "j", "verbose": "v", "debug": "d"}

#: help of these options, unless a command has its own
USUAL = {
    "host": "a host, a group, several (spark1,spark2), or all",
    "recipe": "of a host that serves several: only the server of this recipe",
    "json": "print JSON on stdout, one object a line",
    "debug": "show the traceback of an error",
}


class Command(Task[Any]):
    """An Invoke task of sparkwright.

    `word` is the option that an optional word after the command stands for (`explain [RULE]`).
    """

    word = ""

    def argspec(self, body: Callable[..., Any]) -> Signature:
        """Return the options of a command. Its function takes neither Invoke's context nor --debug."""
        own = inspect.signature(body)
        return own.replace(parameters=[*own.parameters.values(), DEBUG])

    def arg_opts(self, name: str, default: str, taken_names: set[str]) -> dict[str, Any]:
        """Return one option in Invoke's form, with its short name and its help."""
        found: dict[str, Any] = super().arg_opts(name, default, taken_names)
        if name in SHORT:
            found["names"] = [*found["names"], SHORT[name]]
        return {"help": USUAL.get(name), **found}

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Any]:
        """Return every option. Invoke empties the help texts in doing so, so they are restored."""
        texts = self.help.copy()
        try:
            return list(super().get_arguments(ignore_unknown_help))
        finally:
            self.help = texts


def command(
    *,
    name: str | None = None,
    help: Mapping[str, str] | None = None,
    positional: Iterable[str] = (),
    optional: Iterable[str] = (),
    iterable: Iterable[str] = (),
    word: str = "",
    default: bool = False,
) -> Callable[[Body], Command]:
    """Make a function a command. Its docstring is the help, with the first line for lists; help_groups.py has its examples.

    Args:
        optional: options whose value may be left out.
        iterable: options that may be given several times.
        default: make it the command that the collection's name alone stands for.
    """

    def made(body: Body) -> Command:
        about: dict[str, Any] = {
            "name": name,
            "help": help,
            "positional": positional,
            "optional": optional,
            "iterable": iterable,
        }
        task = Command(reporting(body), **about, default=default, auto_shortflags=False)
        task.word = word
        return task

    return made


def command_of(body: Body, name: str, doc: str, options: Sequence[Option], *positional: str) -> Command:
    """Make a command whose options are a table, by giving its function a signature for Invoke."""
    run = reporting(body)
    run.__name__, run.__doc__ = name, doc
    defaults = {
        option: Parameter.empty if option in positional else None if default == () else default
        for option, default, _ in options
    }
    run.__signature__ = Signature(  # type: ignore[attr-defined]
        [Parameter(name.replace("-", "_"), Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()]
    )
    texts = {option.replace("_", "-"): text for option, _, text in options}
    many = [option.replace("-", "_") for option, default, _ in options if default == ()]
    return Command(run, name=name, positional=positional, iterable=many, help=texts, auto_shortflags=False)
