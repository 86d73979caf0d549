"""The words of a serving command: its engine, model and flags, parsed with that engine's table of options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.engines import engine
from sparkwright.engines.engine import Engine
from sparkwright.engines.flags import Imports
from sparkwright.errors import Refused
from sparkwright.project.importing import docker_words
from sparkwright.project.importing.docker_words import split
from sparkwright.project.importing.foreign import Foreign, Report
from sparkwright.visible import one_line

#: engines by the runtimes of other tools
RUNTIMES = {
    "vllm": "vllm", "vllm-distributed": "vllm", "vllm-ray": "vllm", "eugr-vllm": "vllm", "eugr": "vllm",
    "sglang": "sglang", "llama-cpp": "llama_cpp", "llama.cpp": "llama_cpp",
}  # fmt: skip
PYTHONS, MODULE, SERVE = ("python", "python3"), "-m", "serve"
#: the number of leading words among which a command's program is searched
PROGRAM_WORDS = 4
#: programs of servers without a table here
OTHERS = {"trtllm-serve": "TensorRT-LLM", "ollama": "Ollama", "tritonserver": "Triton"}


@dataclass
class Serving:
    """The server that a command starts."""

    #: the engine
    engine: Engine
    #: the engine's table for imports
    imports: Imports
    #: the model as the command names it
    model: str
    #: the engine's flags, by their own names
    flags: dict[str, Any]
    #: the leading words that start the engine; empty where the image does
    program: tuple[str, ...] = ()

    @property
    def entrypoint(self) -> list[str]:
        """The program for a recipe: as written, except that the engine's own replaces `python3 -m ...` and a bare `serve`."""
        as_written = MODULE not in self.program and any(_is_program(word, self.imports) for word in self.program)
        return list(self.program if as_written or not self.program else self.imports.program)


def read(found: Foreign, report: Report) -> Serving:
    """Return the server that the command starts.

    Raises Refused where it starts no engine whose recipes can be imported.
    """
    own = engine.of(_engine_of(found, report))
    imports = own.imports
    if imports is None:
        raise Refused(f"recipes for {own.title} are not taken in.", fix="Write one by hand: docs/files/recipe.md.")
    program, words = _parted(_apart(found.words, report), imports)
    words = imports.spelled_out(words)
    if found.kind == docker_words.KIND:
        words = docker_words.taken_from(words, _is_flag(own), found, report)
    _refuse_short(words, imports)
    parsed = own.command(words)
    flags = dict(parsed.flags)
    model = parsed.model or _stray_model(flags, own)
    for name in flags:
        _say(name, own, report)
    return Serving(own, imports, model, flags, program)


#: an option and its value in one item of a list, as `--port 8000`; JSON and `--name=some text` are none
_TWO_WORDS = re.compile(r"--?[A-Za-z][\w.-]{0,100}\s+\S.*", re.S)
#: an option with one dash; a number is a value
_SHORT = re.compile(r"-[A-Za-z][\w-]{0,100}(?:=.*)?", re.S)


def _apart(words: Sequence[str], report: Report) -> list[str]:
    """Return the words, with items that hold an option and its value, or a program and its first words, split."""
    found: list[str] = []
    for word in words:
        leading = not any(item.startswith("-") for item in found)
        if _TWO_WORDS.fullmatch(word) or (leading and " " in word.strip() and not word.startswith(("-", "{"))):
            parts = split(word)
            report.add(
                "note", one_line(word, at_most=80), f"one item with several words: read as {' and '.join(parts[:4])}"
            )
            found += parts
        else:
            found.append(word)
    return found


def _is_flag(own: Engine) -> Callable[[str], bool]:
    """Return a function that returns True for a word that is an option of this engine."""
    known = own.flags.properties()

    def check(word: str) -> bool:
        name = word.lstrip("-").partition("=")[0].replace("_", "-")
        bare = name.removeprefix("no-")
        return (own.imports is not None and own.imports.one_dash) or name.partition(".")[0] in known or bare in known

    return check


def _refuse_short(words: Sequence[str], imports: Imports) -> None:
    """Raise Refused for a one-dash option that the engine does not have: it is no value of the flag before it."""
    short = "" if imports.one_dash else next((word for word in words if _SHORT.fullmatch(word)), "")
    if short:
        fix = "Where it was meant for Docker, put it before the image; else write the engine's own option, or take it out."
        raise Refused(f"`{one_line(short, at_most=60)}` in the command is none of the engine's options.", fix=fix)


def _engine_of(found: Foreign, report: Report) -> str:
    if found.engine:
        if found.engine not in RUNTIMES:
            able = ", ".join(sorted(RUNTIMES))
            message = f"the runtime '{one_line(found.engine, at_most=60)}' is none that recipes are taken in for."
            raise Refused(message, fix=f"Runtimes: {able}. `engine: openai` serves others: docs/openai.md.")
        return RUNTIMES[found.engine]
    named = [word.rpartition("/")[2] for word in [*(found.entrypoint or ()), *found.words[:PROGRAM_WORDS]]]
    if name := engine_named([*named, found.image]):
        return name
    program = found.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    other = next((OTHERS[word] for word in [*named, program] if word in OTHERS), "")
    if other:
        fix = "Describe it in a recipe with `engine: openai` (docs/openai.md)."
        raise Refused(f"it starts {other}, for which recipes are not taken in.", fix=fix)
    choices = [name for name in engine.TITLES if engine.of(name).imports]
    return report.ask("engine", "neither the command nor the image says which engine serves", choices) or engine.USUAL


def engine_named(texts: Iterable[str]) -> str:
    """Return the engine that the first matching text names, of a command's words and then an image; "" for none."""
    for text in texts:
        for name in engine.TITLES:
            imports = engine.of(name).imports
            if imports and any(item in text for item in imports.names):
                return name
    return ""


def _parted(words: Sequence[str], imports: Imports) -> tuple[tuple[str, ...], list[str]]:
    """Return the words that start the engine, and those after them. An image's own wrapper may precede its program."""
    rest, at = list(words), 0
    for n, word in enumerate(rest[:PROGRAM_WORDS]):
        if word.startswith("-") and word != MODULE:
            break
        if _is_program(word, imports):
            at = n + 1
    if not at and rest[:1] and rest[0].rpartition("/")[2] in PYTHONS:
        at = 3 if rest[1:2] == [MODULE] else 1
    while rest[at : at + 1] == [SERVE]:
        at += 1
    return tuple(rest[:at]), rest[at:]


def _is_program(word: str, imports: Imports) -> bool:
    return word.rpartition("/")[2] in imports.names and ("/" not in word or word.startswith("/"))


def _stray_model(flags: dict[str, Any], own: Engine) -> str:
    """Return a model that follows a switch and was parsed as the switch's value; "" for none."""
    for name, value in flags.items():
        if isinstance(value, str) and "/" in value and "switch" in own.flags.misfit(flags, name):
            flags[name] = True
            return value
    return ""


def _say(name: str, own: Engine, report: Report) -> None:
    known = own.flags.properties()
    head = name.partition(".")[0]
    if head in known or head in own.flags.SET_BY:
        return
    why = f"{own.title}'s table of options does not have it: kept as it is, the image decides"
    report.add("note", f"--{name}", why)
