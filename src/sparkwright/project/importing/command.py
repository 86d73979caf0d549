"""The words of a serving command: its engine, model and flags, parsed with that engine's table of options."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.engines import engine
from sparkwright.engines.engine import Engine
from sparkwright.engines.flags import ImportTable
from sparkwright.errors import Refused
from sparkwright.project.importing import docker_command
from sparkwright.project.importing.docker_command import split_command
from sparkwright.project.importing.foreign_recipe import ForeignRecipe, ImportReport
from sparkwright.visible import one_line

#: engines by the runtimes of other tools
ENGINES_BY_RUNTIME = {
    "vllm": "vllm", "vllm-distributed": "vllm", "vllm-ray": "vllm", "eugr-vllm": "vllm", "eugr": "vllm",
    "sglang": "sglang", "llama-cpp": "llama_cpp", "llama.cpp": "llama_cpp",
}  # fmt: skip
PYTHON_PROGRAMS, MODULE_FLAG, SERVE_WORD = ("python", "python3"), "-m", "serve"
#: the number of leading words among which a command's program is searched
MAX_PROGRAM_WORDS = 4
#: programs of servers without a table here
UNSUPPORTED_SERVERS = {"trtllm-serve": "TensorRT-LLM", "ollama": "Ollama", "tritonserver": "Triton"}


@dataclass
class ServerCommand:
    """The server that a command starts."""

    #: the engine
    engine: Engine
    #: the engine's table for imports
    imports: ImportTable
    #: the model as the command names it
    model: str
    #: the engine's flags, by their own names
    flags: dict[str, Any]
    #: the leading words that start the engine; empty where the image does
    program: tuple[str, ...] = ()

    @property
    def entrypoint(self) -> list[str]:
        """The program for a recipe: as written, except that the engine's own replaces `python3 -m ...` and a bare `serve`."""
        as_written = MODULE_FLAG not in self.program and any(_is_program(word, self.imports) for word in self.program)
        return list(self.program if as_written or not self.program else self.imports.program)


def parse(foreign: ForeignRecipe, report: ImportReport) -> ServerCommand:
    """Return the server that the command starts.

    Raises Refused where it starts no engine whose recipes can be imported.
    """
    target = engine.get_engine(_find_engine(foreign, report))
    imports = target.imports
    if imports is None:
        raise Refused(f"recipes for {target.title} are not taken in.", fix="Write one by hand: docs/files/recipe.md.")
    program, words = _split_program(_split_items(foreign.words, report), imports)
    words = imports.spelled_out(words)
    if foreign.kind == docker_command.KIND:
        words = docker_command.extract_options(words, _build_flag_check(target), foreign, report)
    _refuse_short_option(words, imports)
    parsed = target.command(words)
    flags = dict(parsed.flags)
    model = parsed.model or _take_stray_model(flags, target)
    for name in flags:
        _note_unknown_flag(name, target, report)
    return ServerCommand(target, imports, model, flags, program)


#: an option and its value in one item of a list, as `--port 8000`; JSON and `--name=some text` are none
_TWO_WORDS = re.compile(r"--?[A-Za-z][\w.-]{0,100}\s+\S.*", re.S)
#: an option with one dash; a number is a value
_SHORT_OPTION = re.compile(r"-[A-Za-z][\w-]{0,100}(?:=.*)?", re.S)


def _split_items(words: Sequence[str], report: ImportReport) -> list[str]:
    """Return the words, with items that hold an option and its value, or a program and its first words, split."""
    items: list[str] = []
    for word in words:
        is_leading = not any(item.startswith("-") for item in items)
        if _TWO_WORDS.fullmatch(word) or (is_leading and " " in word.strip() and not word.startswith(("-", "{"))):
            parts = split_command(word)
            report.add(
                "note", one_line(word, max_chars=80), f"one item with several words: read as {' and '.join(parts[:4])}"
            )
            items += parts
        else:
            items.append(word)
    return items


def _build_flag_check(target: Engine) -> Callable[[str], bool]:
    """Return a function that returns True for a word that is an option of this engine."""
    known = target.flags.properties()

    def check(word: str) -> bool:
        name = word.lstrip("-").partition("=")[0].replace("_", "-")
        bare = name.removeprefix("no-")
        return (
            (target.imports is not None and target.imports.one_dash) or name.partition(".")[0] in known or bare in known
        )

    return check


def _refuse_short_option(words: Sequence[str], imports: ImportTable) -> None:
    """Raise Refused for a one-dash option that the engine does not have: it is no value of the flag before it."""
    short = "" if imports.one_dash else next((word for word in words if _SHORT_OPTION.fullmatch(word)), "")
    if short:
        fix = "Where it was meant for Docker, put it before the image; else write the engine's own option, or take it out."
        raise Refused(f"`{one_line(short, max_chars=60)}` in the command is none of the engine's options.", fix=fix)


def _find_engine(foreign: ForeignRecipe, report: ImportReport) -> str:
    if foreign.engine:
        if foreign.engine not in ENGINES_BY_RUNTIME:
            supported = ", ".join(sorted(ENGINES_BY_RUNTIME))
            message = f"the runtime '{one_line(foreign.engine, max_chars=60)}' is none that recipes are taken in for."
            raise Refused(message, fix=f"Runtimes: {supported}. `engine: openai` serves others: docs/openai.md.")
        return ENGINES_BY_RUNTIME[foreign.engine]
    programs = [word.rpartition("/")[2] for word in [*(foreign.entrypoint or ()), *foreign.words[:MAX_PROGRAM_WORDS]]]
    if name := find_engine_name([*programs, foreign.image]):
        return name
    program = foreign.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    other = next((UNSUPPORTED_SERVERS[word] for word in [*programs, program] if word in UNSUPPORTED_SERVERS), "")
    if other:
        fix = "Describe it in a recipe with `engine: openai` (docs/openai.md)."
        raise Refused(f"it starts {other}, for which recipes are not taken in.", fix=fix)
    choices = [name for name in engine.TITLES if engine.get_engine(name).imports]
    return (
        report.ask("engine", "neither the command nor the image says which engine serves", choices)
        or engine.DEFAULT_ENGINE
    )


def find_engine_name(texts: Iterable[str]) -> str:
    """Return the engine that the first matching text names, of a command's words and then an image; "" for none."""
    for text in texts:
        for name in engine.TITLES:
            imports = engine.get_engine(name).imports
            if imports and any(item in text for item in imports.names):
                return name
    return ""


def _split_program(words: Sequence[str], imports: ImportTable) -> tuple[tuple[str, ...], list[str]]:
    """Return the words that start the engine, and those after them. An image's own wrapper may precede its program."""
    rest, at = list(words), 0
    for n, word in enumerate(rest[:MAX_PROGRAM_WORDS]):
        if word.startswith("-") and word != MODULE_FLAG:
            break
        if _is_program(word, imports):
            at = n + 1
    if not at and rest[:1] and rest[0].rpartition("/")[2] in PYTHON_PROGRAMS:
        at = 3 if rest[1:2] == [MODULE_FLAG] else 1
    while rest[at : at + 1] == [SERVE_WORD]:
        at += 1
    return tuple(rest[:at]), rest[at:]


def _is_program(word: str, imports: ImportTable) -> bool:
    return word.rpartition("/")[2] in imports.names and ("/" not in word or word.startswith("/"))


def _take_stray_model(flags: dict[str, Any], target: Engine) -> str:
    """Return a model that follows a switch and was parsed as the switch's value; "" for none."""
    for name, value in flags.items():
        if isinstance(value, str) and "/" in value and "switch" in target.flags.find_value_problem(flags, name):
            flags[name] = True
            return value
    return ""


def _note_unknown_flag(name: str, target: Engine, report: ImportReport) -> None:
    known = target.flags.properties()
    head = name.partition(".")[0]
    if head in known or head in target.flags.SET_BY:
        return
    reason = f"{target.title}'s table of options does not have it: kept as it is, the image decides"
    report.add("note", f"--{name}", reason)
