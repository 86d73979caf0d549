"""What is wrong with a command line, in one sentence that names the nearest right word, and exit code 5.

Invoke's own answers are "No idea what '--hst' is!" with exit code 1, and a traceback for a number that isn't one.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any

from invoke.exceptions import Exit as InvokeExit
from invoke.exceptions import ParseError
from invoke.program import Program

from sparkwright.errors import Exit

#: options of Invoke's own that look like ours and would be taken without effect, with what is meant
MISTAKEN = {"dry": "--dry-run (the same as --check)"}

_parse = Program.parse_tasks


def install() -> None:
    """Have `invoke` and `sparkwright` answer in our words. The former imports tasks.py before it parses the tasks."""
    Program.parse_tasks = _parse_tasks  # type: ignore[assignment,method-assign]


def _parse_tasks(program: Program) -> None:
    words: list[str] = program.core.unparsed
    contexts = {str(name): one for one in program.collection.to_contexts() for name in (one.name, *one.aliases)}
    command: Any = next((contexts[word] for word in words if word in contexts), None)
    if command is not None and {"--help", "-h"} & set(words):
        program.args.help.value = command.name
        program.core.unparsed = [command.name] if not command.positional_args else []
    try:
        _parse(program)
    except ParseError as error:
        raise _refusal(_sentence(str(error), words, error.context or command, contexts)) from None
    except ValueError:
        raise _refusal(_no_number(words, command)) from None
    for name, meant in MISTAKEN.items():
        if program.args[name].value:
            raise _refusal(f"unknown option --{name}. Did you mean {meant}?")


def _refusal(sentence: str) -> InvokeExit:
    return InvokeExit(message=sentence, code=int(Exit.REFUSED))


def _sentence(said: str, words: Sequence[str], context: Any, contexts: dict[str, Any]) -> str:
    """Invoke's complaint, as an operator expects it. context: the command that it stands after, if any."""
    named = context.name if context is not None and context.name else ""
    if said.startswith("No idea what"):
        word = said.removeprefix("No idea what ").removesuffix(" is!").strip("'\"")
        return _unknown(word, named, context, contexts)
    if said.startswith("Flag "):
        option = next((word for word in reversed(words) if word.startswith("-")), "the option")
        return f"{option} needs a value."
    if named and context.missing_positional_args:
        missing = " ".join(one.name.upper() for one in context.missing_positional_args)
        return f"{named} needs {missing}: {named} --help."
    return said


def _unknown(word: str, named: str, context: Any, contexts: dict[str, Any]) -> str:
    if word.startswith("-"):
        known = context.flags if named else {}
        return f"unknown option {word.partition('=')[0]}." + _meant(word.partition("=")[0], known, f"{named} --help")
    if named and "--host" in context.flags and not difflib.get_close_matches(word, contexts, n=1, cutoff=0.8):
        return f"unexpected argument '{word}'. Did you mean {named} --host {word}?"
    return f"unknown command '{word}'." + _meant(word, contexts, "--list")


def _meant(word: str, known: Iterable[str], otherwise: str) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else f" See {otherwise}."


def _no_number(words: Sequence[str], command: Any) -> str:
    """The option of a command that is to be a number, and isn't."""
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
