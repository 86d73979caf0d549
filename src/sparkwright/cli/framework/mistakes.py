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
MISTAKEN = {"dry": "--dry-run (the same as --check)"}
#: options that a bare word after a command may be meant for
WORDLIKE = ("--host", "--recipe")


def parse(program: Program, original: Callable[[Program], None]) -> None:
    """Parse the commands with Invoke's `original`. Raises Invoke's Exit with one sentence for a mistake."""
    words: list[str] = program.core.unparsed
    if {"--help", "-h"} & set(words):
        _help_first(program, words)
    _name_word(program, words)
    try:
        original(program)
    except ParseError as error:
        contexts = _contexts(program)
        raise _refusal(_sentence(str(error), words, error.context or _command(words, contexts), contexts)) from None
    except ValueError:
        raise _refusal(none_in(words, _command(words, _contexts(program)))) from None
    if wrong := _not_there(program):
        raise _refusal(wrong)
    for name, meant in MISTAKEN.items():
        if program.args[name].value:
            raise _refusal(f"unknown option --{name}. Did you mean {meant}?")
    for context in program.tasks:
        own = isinstance(_task(program, str(context.name)), Command)  # the user's own tasks validate their own numbers
        if own and (wrong := out_of_range(context)):
            raise _refusal(wrong)


def _name_word(program: Program, words: list[str]) -> None:
    """Replace `explain RULE` with `explain --rule=RULE`, because Invoke has no optional words."""
    if len(words) > 1 and not words[1].startswith("-"):
        option = getattr(_task(program, words[0]), "word", "")
        if option:
            words[1] = f"--{option}={words[1]}"


def _task(program: Program, name: str) -> Any:
    """Return the task of this name, or None."""
    try:
        return program.collection[name]
    except (KeyError, ValueError):
        return None


def _help_first(program: Program, words: Sequence[str]) -> None:
    """Treat `play --help` as a request for help even though the command expects a word."""
    command = _command(words, _contexts(program))
    if command is not None:
        program.args.help.value = command.name
        program.core.unparsed = [command.name] if not command.positional_args else []


def _contexts(program: Program) -> dict[str, Any]:
    """Return the commands by name. It takes 30 ms, so it is only called after a mistake."""
    return {
        str(name): to_context
        for to_context in program.collection.to_contexts()
        for name in (to_context.name, *to_context.aliases)
    }


def _command(words: Sequence[str], contexts: dict[str, Any]) -> Any:
    return next((contexts[word] for word in words if word in contexts), None)


def _not_there(program: Program) -> str:
    """Return an error message if the word after `--help` or `--list` is unknown; otherwise empty."""
    wanted, group = program.args.help.value, program.args.list.value
    if isinstance(wanted, str) and _task(program, wanted) is None:
        return _unknown(wanted, (), "", None, _contexts(program))
    groups = program.collection.collections
    if isinstance(group, str) and group not in groups:
        return f"no commands below '{group}'." + _meant(group, groups, "--list")
    return ""


def _refusal(sentence: str) -> InvokeExit:
    return InvokeExit(message=sentence, code=int(Exit.REFUSED))


def _sentence(text: str, words: Sequence[str], context: Any, contexts: dict[str, Any]) -> str:
    """Return Invoke's error message in our wording.

    Args:
        context: the command in which the mistake occurred, if any.
    """
    named = context.name if context is not None and context.name else ""
    if text.startswith("No idea what"):  # words: data
        word = text.removeprefix("No idea what ").removesuffix(" is!").strip("'\"")  # words: data
        return _unknown(word, words, named, context, contexts)
    if text.startswith("Flag "):
        option = next((word for word in reversed(words) if word.startswith("-")), "the option")
        return f"{option} needs a value."
    if named and context.missing_positional_args:
        missing = " ".join(arg.name.upper() for arg in context.missing_positional_args)
        return f"{named} needs {missing}: {named} --help."
    return text


def _unknown(word: str, words: Sequence[str], named: str, context: Any, contexts: dict[str, Any]) -> str:
    known = context.flags if named else {}
    if word.startswith("-"):
        if word.lstrip("-") in MISTAKEN:
            return f"unknown option {word}. Did you mean {MISTAKEN[word.lstrip('-')]}?"
        help_of = f"{named} --help".strip()
        return f"unknown option {word.partition('=')[0]}." + _meant(word.partition("=")[0], known, help_of)
    switch = next((item.partition("=")[0] for item in words if item.startswith("-") and item.endswith(f"={word}")), "")
    if switch in known:
        return f"{switch} takes no value, got '{word}'."
    if not named or difflib.get_close_matches(word, contexts, n=1, cutoff=0.8):
        return f"unknown command '{word}'." + _meant(word, contexts, "--list")
    option = next((item for item in WORDLIKE if item in known), "")
    meant = f"Did you mean {named} {option} {word}?" if option else f"See {named} --help."
    return f"unexpected argument '{word}'. {meant}"


def _meant(word: str, known: Iterable[str], otherwise: str) -> str:
    names = {item.lstrip("-"): item for item in known}  # dashes must not count as similarity
    near = difflib.get_close_matches(word.lstrip("-"), names, n=1)
    return f" Did you mean {names[near[0]]}?" if near else f" See {otherwise}."


#: minimum of numeric options
LEAST: dict[str, float] = {
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
#: maximum of durations and counts; a seed has no limit
MOST = 1e9
ANY = ("seed",)


def out_of_range(context: Any) -> str:
    """Return an error message if a number is out of range for its option; otherwise empty."""
    numbers = (option for option in context.args.values() if option.kind in (int, float) and option.got_value)
    for option in (number for number in numbers if number.name not in ANY):
        name = option.name.replace("_", "-")
        least = LEAST.get(name, -MOST)
        if not least <= option.value <= MOST:  # also False for NaN
            bound = f"at least {least:g}" if option.value < least else f"a number up to {MOST:,.0f}"
            return f"--{name} must be {bound}, got {option.value}."
    return ""


def none_in(words: Sequence[str], command: Any) -> str:
    """Return an error message that names the option whose value is not a number but must be."""
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
