"""Error messages for mistakes on the command line: one sentence with the closest valid word, and exit code 5.

Invoke itself exits with code 1 for an unknown option, and prints a traceback for an invalid number.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from invoke.exceptions import Exit as InvokeExit
from invoke.exceptions import ParseError
from invoke.program import Program

from sparkwright.cli.framework.command import Command
from sparkwright.errors import Exit

#: options of Invoke that resemble ours but have no effect, with the option to suggest
SUGGESTED_OPTIONS = {"dry": "--dry-run (the same as --check)"}
#: options to suggest for an unexpected word after a command, in this order, with the folder of the files that they name
WORD_OPTIONS = {"--host": "hosts/", "--recipe": "recipes/"}

#: minimum values of numeric options
MIN_VALUES: dict[str, float] = {
    "canary": 0,
    "every": 0.1,
    "last": 1,
    "long-tokens": 0,
    "output-tokens": 0,
    "prompt-tokens": 0,
    "repeat": 1,
    "requests": 0,
    "tail": 1,
    "timeout-s": 0.1,
    "token-s": 0,
}
#: maximum for durations and counts; a seed has no limit
MAX_VALUE = 1e9
UNBOUNDED_OPTIONS = ("seed",)


def parse_commands(program: Program, parse_tasks: Callable[[Program], None]) -> None:
    """Parse the commands with Invoke's `parse_tasks`. Raises Invoke's Exit with one sentence for a mistake."""
    words: list[str] = program.core.unparsed
    if {"--help", "-h"} & set(words):
        _request_help(program, words)
    _expand_word(program, words)
    try:
        parse_tasks(program)
    except ParseError as error:
        contexts = _build_contexts(program)
        raise _refuse(
            _describe_parse_error(str(error), words, error.context or _find_command(words, contexts), contexts)
        ) from None
    except ValueError:
        raise _refuse(describe_invalid_number(words, _find_command(words, _build_contexts(program)))) from None
    if message := _check_help_names(program):
        raise _refuse(message)
    for name, suggestion in SUGGESTED_OPTIONS.items():
        if program.args[name].value:
            raise _refuse(f"unknown option --{name}. Did you mean {suggestion}?")
    for context in program.tasks:
        # the user's own tasks validate their own numbers
        is_ours = isinstance(_find_task(program, str(context.name)), Command)
        if is_ours and (message := check_ranges(context)):
            raise _refuse(message)


def _expand_word(program: Program, words: list[str]) -> None:
    """Replace `explain RULE` with `explain --rule=RULE`, because Invoke has no optional positional arguments.

    The word may follow options.
    """
    task = _find_task(program, words[0]) if words else None
    option = getattr(task, "word", "")
    if task is None or not option:
        return
    value_options = {name for argument in task.get_arguments() if argument.takes_value for name in argument.names}
    for n, word in enumerate(words[1:], 1):
        if word.partition("=")[0] == f"--{option}":
            return
        is_value = words[n - 1].startswith("-") and words[n - 1].lstrip("-") in value_options
        if not word.startswith("-") and not is_value:
            words[n] = f"--{option}={word}"
            return


def _find_task(program: Program, name: str) -> Any:
    """Return the task of this name, or None."""
    try:
        return program.collection[name]
    except (KeyError, ValueError):
        return None


def _request_help(program: Program, words: Sequence[str]) -> None:
    """Treat `play --help` as a request for help, even though the command expects a word."""
    command = _find_command(words, _build_contexts(program))
    if command is not None:
        program.args.help.value = command.name
        program.core.unparsed = [command.name] if not command.positional_args else []


def _build_contexts(program: Program) -> dict[str, Any]:
    """Return the commands by name. This takes 30 ms, so it is only called after a mistake."""
    return {
        str(name): context for context in program.collection.to_contexts() for name in (context.name, *context.aliases)
    }


def _find_command(words: Sequence[str], contexts: dict[str, Any]) -> Any:
    return next((contexts[word] for word in words if word in contexts), None)


def _check_help_names(program: Program) -> str:
    """Return an error message if the word after `--help` or `--list` is unknown; otherwise empty."""
    command, group = program.args.help.value, program.args.list.value
    if isinstance(command, str) and _find_task(program, command) is None:
        return _describe_unknown_word(command, (), "", None, _build_contexts(program))
    groups = program.collection.collections
    if isinstance(group, str) and group not in groups:
        return f"no command group '{group}'." + _suggest(group, groups, "--list")
    return ""


def _refuse(message: str) -> InvokeExit:
    return InvokeExit(message=message, code=int(Exit.REFUSED))


def _describe_parse_error(text: str, words: Sequence[str], context: Any, contexts: dict[str, Any]) -> str:
    """Return Invoke's error message in our wording.

    Args:
        context: the command in which the mistake occurred, if any.
    """
    command = context.name if context is not None and context.name else ""
    if text.startswith("No idea what"):  # words: data
        word = text.removeprefix("No idea what ").removesuffix(" is!").strip("'\"")  # words: data
        return _describe_unknown_word(word, words, command, context, contexts)
    if text.startswith("Flag "):
        option = next((word for word in reversed(words) if word.startswith("-")), "the option")
        return f"{option} needs a value."
    if command and context.missing_positional_args:
        missing_names = " ".join(arg.name.upper() for arg in context.missing_positional_args)
        return f"{command} needs {missing_names}: {command} --help."
    return text


def _describe_unknown_word(
    word: str, words: Sequence[str], command: str, context: Any, contexts: dict[str, Any]
) -> str:
    flags = context.flags if command else {}
    if word.startswith("-"):
        if word.lstrip("-") in SUGGESTED_OPTIONS:
            return f"unknown option {word}. Did you mean {SUGGESTED_OPTIONS[word.lstrip('-')]}?"
        option = word.partition("=")[0]
        return f"unknown option {option}." + _suggest(option, flags, f"{command} --help".strip())
    if not command and any(name.startswith(f"{word}.") for name in contexts):
        return f"'{word}' is a group of commands. `--list {word}` lists them."
    flag = next((item.partition("=")[0] for item in words if item.startswith("-") and item.endswith(f"={word}")), "")
    if flag in flags:
        return f"{flag} takes no value, got '{word}'."
    if not command or difflib.get_close_matches(word, contexts, n=1, cutoff=0.8):
        return f"unknown command '{word}'." + _suggest(word, contexts, "--list")
    options = [item for item in WORD_OPTIONS if item in flags]
    option = next((item for item in options if WORD_OPTIONS[item] in word), next(iter(options), ""))
    # names are given without folder and suffix
    name = word.removesuffix(".yml").rpartition(WORD_OPTIONS[option])[2] if option else ""
    hint = f"Did you mean {command} {option} {name}?" if option else f"See {command} --help."
    return f"unexpected argument '{word}'. {hint}"


def _suggest(word: str, candidates: Iterable[str], help_option: str) -> str:
    names = {item.lstrip("-"): item for item in candidates}  # without dashes, which would make all options similar
    matches = difflib.get_close_matches(word.lstrip("-"), names, n=1)
    return f" Did you mean {names[matches[0]]}?" if matches else f" See {help_option}."


def check_ranges(context: Any) -> str:
    """Return an error message if a number is out of range for its option; otherwise empty."""
    for option in context.args.values():
        if option.kind not in (int, float) or not option.got_value or option.name in UNBOUNDED_OPTIONS:
            continue
        name = option.name.replace("_", "-")
        minimum = MIN_VALUES.get(name, -MAX_VALUE)
        if not minimum <= option.value <= MAX_VALUE:  # also False for NaN
            range_text = f"at least {minimum:g}" if option.value < minimum else f"a number up to {MAX_VALUE:,.0f}"
            return f"--{name} must be {range_text}, got {option.value}."
    return ""


def describe_invalid_number(words: Sequence[str], command: Any) -> str:
    """Return an error message for the first option whose value must be a number and is not."""
    for n, word in enumerate(words):
        option, _, value = word.partition("=")
        value = value or (words[n + 1] if n + 1 < len(words) else "")
        flag = command.flags.get(option) if command is not None else None
        if flag is not None and flag.kind in (int, float) and not _is_number(value, flag.kind):
            return f"{option} must be a number, got '{value}'."
    return "a number is expected on the command line."


def _is_number(text: str, kind: type[int] | type[float]) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
