"""The `sparkwright` program, and our help, error messages and exit codes for `invoke`."""

from __future__ import annotations

import os
import sys
from typing import Any

from invoke.exceptions import Exit as InvokeExit
from invoke.parser import Parser
from invoke.parser.context import ParserContext
from invoke.program import Program

from sparkwright.cli.framework import start, usage_errors

#: Invoke's own options that have an effect here, with their help. The others (--pty, --dry, --hide ...) concern its `run`,
#: which none of our commands use
SUPPORTED_OPTIONS = {
    "help": "show this help; after a command, the help of the command",
    "list": "list the commands; with a value (--list bench) only those below it",
    "version": "show the version",
}

_invoke_parse_tasks = Program.parse_tasks
_invoke_list_flat = Program.list_flat


class Sparkwright(Program):
    """Invoke's Program, limited to the options that have an effect here."""

    def core_args(self) -> list[Any]:
        """Return the options that may come before or after one of our commands."""
        options = [option for option in super().core_args() if option.name in SUPPORTED_OPTIONS]
        for option in options:
            option.help = SUPPORTED_OPTIONS[str(option.name)]
        return options

    def parse_core_args(self) -> None:
        """Parse the options, and add defaults for the other options, which Invoke reads later."""
        super().parse_core_args()
        for option in super().core_args():
            if option.name not in SUPPORTED_OPTIONS:
                self.core[0].add_arg(option)

    def _make_parser(self) -> Parser:
        """Return a parser for only the named commands, which saves 30 ms."""
        words = {*self.core.unparsed, self.args.help.value}
        return Parser(
            initial=self.initial_context,
            contexts=[
                ParserContext(name=name, aliases=aliases, args=self.collection[name].get_arguments())
                for name, aliases in self.collection.task_names.items()
                if words & {name, *aliases}
            ],
        )

    def print_help(self) -> None:
        """Print the text of `sparkwright --help`."""
        from sparkwright.cli.framework import help

        _print(help.program_help(self.binary, self.core_args(), self.collection))


def install() -> None:
    """Install our help and messages in `invoke`, which imports this module through tasks.py before parsing the tasks."""
    Program.parse_tasks = _parse_commands  # type: ignore[assignment,method-assign]
    Program.list_flat = _print_command_list  # type: ignore[assignment,method-assign]
    Program.print_task_help = _print_command_help  # type: ignore[assignment,method-assign]


def _parse_commands(program: Program) -> None:
    start.enable_bytecode()
    usage_errors.parse_commands(program, _invoke_parse_tasks)


def _print_command_list(program: Program) -> None:
    from sparkwright.cli.framework import help

    if program.list_depth:
        return _invoke_list_flat(program)
    return _print(help.format_command_list(program.collection, program.list_root or ""))


def _print_command_help(program: Program, name: str) -> None:
    from sparkwright.cli.framework import help

    name = program.parser.contexts[name].name
    _print(help.command_help(program.called_as, name, program.collection, program.parser.contexts[name]))


def _print(text: str) -> None:
    """Print text and flush it. Exits with code 0 if the pipe is closed, as with `--help | head`."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise InvokeExit(code=0) from None
