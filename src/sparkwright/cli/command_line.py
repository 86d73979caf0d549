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

#: the smallest value of an option that is a number, where not every number means something
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
#: of any of them: what waits or counts can't take more. A seed is no amount
MOST = 1e9
ANY = ("seed",)

#: options that a bare word after a command may have been meant for
WORDLIKE = ("--host", "--recipe")

_parse = Program.parse_tasks


def install() -> None:
    """Have `invoke` and `sparkwright` answer in our words. The former imports tasks.py before it parses the tasks."""
    Program.parse_tasks = _parse_tasks  # type: ignore[assignment,method-assign]


def _parse_tasks(program: Program) -> None:
    words: list[str] = program.core.unparsed
    if {"--help", "-h"} & set(words):
        _help_first(program, words)
    try:
        _parse(program)
    except ParseError as error:
        contexts = _contexts(program)
        raise _refusal(_sentence(str(error), words, error.context or _command(words, contexts), contexts)) from None
    except ValueError:
        raise _refusal(_no_number(words, _command(words, _contexts(program)))) from None
    for name, meant in MISTAKEN.items():
        if program.args[name].value:
            raise _refusal(f"unknown option --{name}. Did you mean {meant}?")
    for context in program.tasks:
        _refuse_out_of_range(context)


def _refuse_out_of_range(context: Any) -> None:
    """Refuse a number that means nothing for its option, for our commands: a user's own tasks know their own."""
    given = [one for one in context.args.values() if one.kind in (int, float) and one.got_value and one.name not in ANY]
    if not given:
        return
    from sparkwright.cli import namespace

    if context.name not in namespace.task_names and context.name not in sum(namespace.task_names.values(), ()):
        return
    for one in given:
        option = one.name.replace("_", "-")
        least = LEAST.get(option, -MOST)
        if not least <= one.value <= MOST:  # nor is a NaN
            said = f"at least {least:g}" if one.value < least else f"a number up to {MOST:,.0f}"
            raise _refusal(f"--{option} must be {said}, got {one.value}.")


def _help_first(program: Program, words: Sequence[str]) -> None:
    """`play --help` asks for help, though a word is expected there."""
    command = _command(words, _contexts(program))
    if command is not None:
        program.args.help.value = command.name
        program.core.unparsed = [command.name] if not command.positional_args else []


def _contexts(program: Program) -> dict[str, Any]:
    """The commands by name. Making them takes 30 ms, so only where something is wrong."""
    return {str(name): one for one in program.collection.to_contexts() for name in (one.name, *one.aliases)}


def _command(words: Sequence[str], contexts: dict[str, Any]) -> Any:
    return next((contexts[word] for word in words if word in contexts), None)


def _refusal(sentence: str) -> InvokeExit:
    return InvokeExit(message=sentence, code=int(Exit.REFUSED))


def _sentence(said: str, words: Sequence[str], context: Any, contexts: dict[str, Any]) -> str:
    """Invoke's complaint, as an operator expects it. context: the command that it stands after, if any."""
    named = context.name if context is not None and context.name else ""
    if said.startswith("No idea what"):
        word = said.removeprefix("No idea what ").removesuffix(" is!").strip("'\"")
        return _unknown(word, words, named, context, contexts)
    if said.startswith("Flag "):
        option = next((word for word in reversed(words) if word.startswith("-")), "the option")
        return f"{option} needs a value."
    if named and context.missing_positional_args:
        missing = " ".join(one.name.upper() for one in context.missing_positional_args)
        return f"{named} needs {missing}: {named} --help."
    return said


def _unknown(word: str, words: Sequence[str], named: str, context: Any, contexts: dict[str, Any]) -> str:
    known = context.flags if named else {}
    if word.startswith("-"):
        help_of = f"{named} --help".strip()
        return f"unknown option {word.partition('=')[0]}." + _meant(word.partition("=")[0], known, help_of)
    switch = next((one.partition("=")[0] for one in words if one.startswith("-") and one.endswith(f"={word}")), "")
    if switch in known:
        return f"{switch} takes no value, got '{word}'."
    if not named or difflib.get_close_matches(word, contexts, n=1, cutoff=0.8):
        return f"unknown command '{word}'." + _meant(word, contexts, "--list")
    option = next((one for one in WORDLIKE if one in known), "")
    return f"unexpected argument '{word}'." + (
        f" Did you mean {named} {option} {word}?" if option else f" See {named} --help."
    )


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
