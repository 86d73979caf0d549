"""Parses the command that starts a server into engine, model and flags."""

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

#: engines by other tools' names for them
ENGINES_BY_RUNTIME = {
    "vllm": "vllm", "vllm-distributed": "vllm", "vllm-ray": "vllm", "eugr-vllm": "vllm", "eugr": "vllm",
    "sglang": "sglang", "llama-cpp": "llama_cpp", "llama.cpp": "llama_cpp",
}  # fmt: skip
PYTHON_PROGRAMS, MODULE_FLAG, SERVE_WORD = ("python", "python3"), "-m", "serve"
#: number of leading words of a command that may name its program
MAX_PROGRAM_WORDS = 4
#: programs of servers whose recipes cannot be imported
UNSUPPORTED_SERVERS = {"trtllm-serve": "TensorRT-LLM", "ollama": "Ollama", "tritonserver": "Triton"}
#: an option and its value in one list item, such as `--port 8000`; not JSON or `--name=some text`
_OPTION_WITH_VALUE_PATTERN = re.compile(r"--?[A-Za-z][\w.-]{0,100}\s+\S.*", re.S)
#: an option with one dash; not a negative number
_SHORT_OPTION_PATTERN = re.compile(r"-[A-Za-z][\w-]{0,100}(?:=.*)?", re.S)


@dataclass
class ServerCommand:
    """A parsed command that starts a server."""

    engine: Engine
    imports: ImportTable
    #: model that the command names
    model: str
    #: flags by their canonical names
    flags: dict[str, Any]
    #: leading words that start the engine; empty if the image starts it
    program: tuple[str, ...] = ()

    @property
    def entrypoint(self) -> list[str]:
        """The program for a recipe: as written, except that the engine's usual program replaces `python3 -m ...` and `serve`."""
        is_explicit = MODULE_FLAG not in self.program and any(_is_program(word, self.imports) for word in self.program)
        return list(self.program if is_explicit or not self.program else self.imports.program)


def parse(foreign: ForeignRecipe, report: ImportReport) -> ServerCommand:
    """Return the parsed command of a recipe. Raises Refused if its engine or an option is not supported."""
    target_engine = engine.get_engine(_find_engine(foreign, report))
    imports = target_engine.imports
    if imports is None:
        raise Refused(
            f"recipes for {target_engine.title} cannot be imported.", fix="Write one by hand: docs/files/recipe.md."
        )
    program, words = _split_program(_split_items(foreign.words, report), imports)
    words = imports.expand_short_options(words)
    if foreign.kind == docker_command.KIND:
        words = docker_command.extract_options(words, _build_flag_check(target_engine), foreign, report)
    _refuse_short_option(words, imports)
    parsed = target_engine.parse_command(words)
    flags = dict(parsed.flags)
    model = parsed.model or _take_stray_model(flags, target_engine)
    known_flags = target_engine.flags.properties().keys() | target_engine.flags.RESERVED_FLAGS.keys()
    for name in flags:
        if name.partition(".")[0] not in known_flags:
            report.add(
                "note", f"--{name}", f"not in sparkwright's table of {target_engine.title} options; kept unchanged"
            )
    return ServerCommand(target_engine, imports, model, flags, program)


def _split_items(words: Sequence[str], report: ImportReport) -> list[str]:
    """Return the words of a command. Items that contain an option and its value, or the program and its words, are split."""
    split_words: list[str] = []
    for item in words:
        is_leading = not any(word.startswith("-") for word in split_words)
        if _OPTION_WITH_VALUE_PATTERN.fullmatch(item) or (
            is_leading and " " in item.strip() and not item.startswith(("-", "{"))
        ):
            parts = split_command(item)
            reason = f"one item with several words: read as {' and '.join(parts[:4])}"
            report.add("note", one_line(item, max_chars=80), reason)
            split_words += parts
        else:
            split_words.append(item)
    return split_words


def _build_flag_check(target: Engine) -> Callable[[str], bool]:
    """Return a function that returns True for an option of the engine."""
    known_flags = target.flags.properties()

    def is_flag(word: str) -> bool:
        name = word.lstrip("-").partition("=")[0].replace("_", "-")
        return (
            (target.imports is not None and target.imports.accepts_single_dash)
            or name.partition(".")[0] in known_flags
            or name.removeprefix("no-") in known_flags
        )

    return is_flag


def _refuse_short_option(words: Sequence[str], imports: ImportTable) -> None:
    """Raise Refused for an option with one dash, unless the engine has such options."""
    option = (
        ""
        if imports.accepts_single_dash
        else next((word for word in words if _SHORT_OPTION_PATTERN.fullmatch(word)), "")
    )
    if option:
        fix = "Put Docker's options before the image; use the engine's long options, or remove it."
        raise Refused(f"`{one_line(option, max_chars=60)}` in the command is not an option of the engine.", fix=fix)


def _find_engine(foreign: ForeignRecipe, report: ImportReport) -> str:
    if foreign.engine:
        if foreign.engine not in ENGINES_BY_RUNTIME:
            supported = ", ".join(sorted(ENGINES_BY_RUNTIME))
            message = f"recipes for the runtime '{one_line(foreign.engine, max_chars=60)}' cannot be imported."
            raise Refused(message, fix=f"Supported: {supported}. For others, use `engine: openai` (docs/openai.md).")
        return ENGINES_BY_RUNTIME[foreign.engine]
    programs = [word.rpartition("/")[2] for word in [*(foreign.entrypoint or ()), *foreign.words[:MAX_PROGRAM_WORDS]]]
    if name := find_engine_name([*programs, foreign.image]):
        return name
    program = foreign.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    for word in [*programs, program]:
        if word in UNSUPPORTED_SERVERS:
            fix = "Describe it in a recipe with `engine: openai` (docs/openai.md)."
            raise Refused(f"recipes for {UNSUPPORTED_SERVERS[word]} cannot be imported.", fix=fix)
    choices = [name for name in engine.TITLES if engine.get_engine(name).imports]
    answer = report.ask("engine", "neither the command nor the image names an engine: which one is it", choices)
    return answer or engine.DEFAULT_ENGINE


def find_engine_name(texts: Iterable[str]) -> str:
    """Return the engine that one of the texts names; empty if there is none. texts: words of a command, or an image."""
    for text in texts:
        for name in engine.TITLES:
            imports = engine.get_engine(name).imports
            if imports and any(part in text for part in imports.program_names):
                return name
    return ""


def _split_program(words: Sequence[str], imports: ImportTable) -> tuple[tuple[str, ...], list[str]]:
    """Return the words that start the engine, including the image's wrapper script, and the words after them."""
    program_length = 0
    for n, word in enumerate(words[:MAX_PROGRAM_WORDS]):
        if word.startswith("-") and word != MODULE_FLAG:
            break
        if _is_program(word, imports):
            program_length = n + 1
    if not program_length and words and words[0].rpartition("/")[2] in PYTHON_PROGRAMS:
        program_length = 3 if words[1:2] == [MODULE_FLAG] else 1
    while words[program_length : program_length + 1] == [SERVE_WORD]:
        program_length += 1
    return tuple(words[:program_length]), list(words[program_length:])


def _is_program(word: str, imports: ImportTable) -> bool:
    return word.rpartition("/")[2] in imports.program_names and ("/" not in word or word.startswith("/"))


def _take_stray_model(flags: dict[str, Any], target: Engine) -> str:
    """Return a model that was parsed as the value of a preceding switch, and correct the switch; "" if there is none."""
    for name, value in flags.items():
        if isinstance(value, str) and "/" in value and "switch" in target.flags.find_value_problem(flags, name):
            flags[name] = True
            return value
    return ""
