"""Parses `docker run` commands. Importers of other formats convert their input to `docker run` arguments and use this parser."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from sparkwright.errors import Refused
from sparkwright.project.importing.foreign_recipe import MAX_CHARS, MAX_WORDS, ForeignRecipe, ImportReport
from sparkwright.protocol.container import DOCKER_OPTIONS, ContainerSpec
from sparkwright.trust import secret_patterns
from sparkwright.visible import one_line

KIND = "a docker run line"
#: other spellings of options, each with the one in DOCKER_OPTIONS
ALIASES = {
    "--publish": "-p", "--volume": "-v", "--env": "-e", "-l": "--label", "-m": "--memory", "-w": "--workdir", "-u": "--user",
    "-h": "--hostname", "--net": "--network", "--dns-servers": "--dns",
}  # fmt: skip
#: options without a value, each with the reason for dropping it
DROPPED_SWITCHES = {
    "-d": "servers always run in the background", "--detach": "servers always run in the background",
    "-i": "a server needs no terminal", "--interactive": "a server needs no terminal",
    "-t": "a server needs no terminal", "--tty": "a server needs no terminal",
    "--rm": "the previous server is kept for a rollback",
    "--no-healthcheck": "sparkwright itself checks that the server generates text",
    "-P": "the server has one port, published by number", "--publish-all": "the server has one port, published by number",
    "--sig-proxy": "servers always run in the background",
}  # fmt: skip
#: options with a value, each with the reason for dropping it; if empty, the default reason
DROPPED_OPTIONS = {
    "--name": "", "--restart": "", "--entrypoint": "",
    "--runtime": "`gpus` adds the GPU", "--pull": "spark.lock pins the image", "--platform": "a Spark is always linux/arm64",
    "--env-file": "the variables in it were not imported: add them under container.env", "--cidfile": "",
    "--stop-timeout": "stop_timeout_s", "--cgroup-parent": "", "--pids-limit": "", "--userns": "", "--uts": "",
    "--storage-opt": "", "--volume-driver": "",
    **dict.fromkeys(
        ("--health-cmd", "--health-interval", "--health-retries", "--health-timeout", "--health-start-period"),
        "sparkwright itself checks that the server generates text",
    ),
}  # fmt: skip
#: names in a recipe's `container`, by option
RECIPE_FIELDS = {option.flag: name for name, option in reversed(DOCKER_OPTIONS.items())}
#: fields of `ForeignRecipe`, by option
FOREIGN_FIELDS = {"-p": "ports", "-v": "volumes"}
#: names of shell syntax, for messages
SHELL_OPERATORS = {
    "|": "a pipe",
    "&": "`&` or `&&`",
    ";": "`;`",
    "<": "a redirection",
    ">": "a redirection",
    "(": "a subshell",
}
_LINE_CONTINUATION_PATTERN = re.compile(r"\\[ \t]*\r?\n")
_VARIABLE_PATTERN = re.compile(r"\$(?:\{[^}]{0,200}\}|[A-Za-z_]\w{0,100})")
_ASSIGNMENT_PATTERN = re.compile(r"[A-Za-z_]\w{0,100}=")
SHELLS = frozenset(("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash"))


def recipe_field(option: str) -> str:
    """Return the name of a `docker run` option in recipes, or "". option: long form without dashes."""
    return RECIPE_FIELDS.get(ALIASES.get(f"--{option}", f"--{option}"), "")


def matches(text: str) -> bool:
    """Return True if the text is a `docker run` command, with or without `sudo` and leading comments."""
    words = _strip_comments(text).split(None, 4)
    words = words[1:] if words[:1] == ["sudo"] else words
    return words[:2] in (["docker", "run"], ["podman", "run"]) or words[:3] == ["docker", "container", "run"]


def parse(text: str, report: ImportReport) -> ForeignRecipe:
    """Return the recipe of a `docker run` command. Raises Refused for shell syntax and unknown options."""
    words = split_command(_strip_comments(text))
    foreign = parse_arguments(words[words.index("run") + 1 :], ForeignRecipe(KIND, ""), report)
    foreign.name = str(foreign.options.get("name") or "")
    return foreign


def parse_arguments(words: list[str], foreign: ForeignRecipe, report: ImportReport) -> ForeignRecipe:
    """Set image, command and options of a recipe from arguments of `docker run`, and return the recipe.

    Raises Refused for unknown options.
    """
    while words and words[0].startswith("-") and words[0] != "--":
        words = _parse_option(words, foreign, report)
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise Refused("the docker run command names no image.")
    foreign.image = words.pop(0)
    env, foreign.words = split_assignments(unwrap_shell([*(foreign.entrypoint or ()), *words]))
    foreign.env |= env
    return foreign


def build_arguments(image: str, command: Iterable[str], **options: Iterable[str]) -> list[str]:
    """Return the arguments of `docker run`.

    Args:
        image: may be empty.
        options: values by the option's name, e.g. env=["A=1"].
    """
    option_words = [f"--{name.replace('_', '-')}={value}" for name, values in options.items() for value in values]
    return [*option_words, "--", image, *command]


def format_pairs(values: Mapping[str, str]) -> list[str]:
    """Return NAME=VALUE for each item of a mapping."""
    return [f"{name}={value}" for name, value in values.items()]


def extract_options(
    words: Sequence[str], is_flag: Callable[[str], bool], foreign: ForeignRecipe, report: ImportReport
) -> list[str]:
    """Move Docker's options after the image, where Docker would pass them to the engine, into `foreign`. Return the other words.

    Args:
        words: the words after the image.
        is_flag: returns True for an option of the engine.
    """
    engine_words: list[str] = []
    remaining_words = list(words)
    while remaining_words:
        flag = remaining_words[0].partition("=")[0]
        docker_flag = ALIASES.get(flag, flag)
        is_docker_option = any(docker_flag in table for table in (DROPPED_SWITCHES, RECIPE_FIELDS, DROPPED_OPTIONS))
        if not docker_flag.startswith("-") or is_flag(remaining_words[0]) or not is_docker_option:
            engine_words.append(remaining_words.pop(0))
            continue
        words_after = _parse_option(remaining_words, foreign, report)
        option = " ".join(remaining_words[: len(remaining_words) - len(words_after)])
        report.add("translated", option, "an option after the image, where Docker would pass it to the engine")
        remaining_words = words_after
    return engine_words


def _strip_comments(text: str) -> str:
    """Strip comments and the shell prompt from pasted text."""
    lines = [line for line in text.strip().splitlines() if not line.lstrip().startswith("#")]
    return "\n".join(lines).strip().removeprefix("$ ")


def _parse_option(words: list[str], foreign: ForeignRecipe, report: ImportReport) -> list[str]:
    """Parse the option at the beginning of the words, and return the words after it."""
    first_word = words[0]
    if len(first_word) > 2 and first_word[:2] in DROPPED_SWITCHES:  # -itd, -dp 8000:8000
        words = [first_word[:2], f"-{first_word[2:]}", *words[1:]]
    flag, equals, value = words[0].partition("=")
    words_after = words[1:]
    if (
        not flag.startswith("--")
        and flag not in DROPPED_SWITCHES
        and flag[:2] in ("-p", "-v", "-e", "-w", "-u", "-h", "-m", "-l")
        and len(flag) > 2
    ):
        flag, equals, value = flag[:2], "=", words[0][2:]
    flag = ALIASES.get(flag, flag)
    if flag in DROPPED_SWITCHES:
        report.add("dropped", flag, DROPPED_SWITCHES[flag])
        return words_after
    name = RECIPE_FIELDS.get(flag, "")
    value_type = get_type_hints(ContainerSpec).get(name)
    if value_type in (bool, bool | None):
        foreign.options[name] = value.lower() != "false" if equals else True
        return words_after
    if not name and flag not in DROPPED_OPTIONS and flag != "--mount":
        fix = "Remove it, and add an equivalent setting to the recipe by hand."
        raise Refused(f"unknown option `{one_line(flag, max_chars=60)}` of docker run.", fix=fix)
    if not equals:
        if not words_after:
            raise Refused(f"`{flag}` of the docker run command has no value.")
        value, words_after = words_after[0], words_after[1:]
    _set_option(flag, name, value_type, value, foreign, report)
    return words_after


def _set_option(
    flag: str, name: str, value_type: Any, value: str, foreign: ForeignRecipe, report: ImportReport
) -> None:
    if flag == "--mount":
        _parse_mount(value, foreign, report)
    elif flag == "--entrypoint":
        foreign.entrypoint = [value] if value else []
    elif flag in ("--name", "--restart"):
        foreign.options[flag.removeprefix("--")] = value
    elif flag == "--stop-timeout" and value.isdigit():
        foreign.options["stop_timeout_s"] = int(value)
    elif flag in FOREIGN_FIELDS:
        getattr(foreign, FOREIGN_FIELDS[flag]).append(value)
    elif not name:
        report.add("dropped", f"{flag} {value}", DROPPED_OPTIONS[flag] or "recipes have no such option")
    elif name == "env":
        key, equals, text = value.partition("=")
        foreign.env[key] = text if equals else f"${key}"
    elif name == "network":
        foreign.network = value
    elif value_type == tuple[str, ...]:
        foreign.options[name] = (*foreign.options.get(name, ()), value)
    elif value_type == dict[str, str]:
        key, _, text = value.partition("=")
        foreign.options[name] = {**foreign.options.get(name, {}), key: text}
    elif value_type in (int, float):
        try:
            foreign.options[name] = value_type(value)
        except ValueError:
            number = "whole number" if value_type is int else "number"
            raise Refused(f"`{name}` must be a {number}, got '{one_line(value, max_chars=40)}'.") from None
    else:
        foreign.options[name] = value.strip('"') if name == "gpus" else value


def _parse_mount(value: str, foreign: ForeignRecipe, report: ImportReport) -> None:
    fields = dict(field.partition("=")[::2] for field in value.split(","))
    source, target = (
        next((fields[key] for key in keys if key in fields), "")
        for keys in (("source", "src"), ("target", "dst", "destination"))
    )
    if fields.get("type") == "bind" and source and target:
        foreign.volumes.append(f"{source}:{target}{':ro' if 'readonly' in fields or 'ro' in fields else ''}")
    else:
        report.add("dropped", f"--mount {value}", "only bind mounts of host folders are supported")


def split_command(text: str) -> list[str]:
    """Return the words of a single command. Raises Refused for several commands, and for syntax that needs a shell."""
    if len(text) > MAX_CHARS:
        raise Refused(f"the command line is longer than {MAX_CHARS} characters.")
    joined_text = _LINE_CONTINUATION_PATTERN.sub(" ", text).rstrip().rstrip("\\").strip()
    _reject_shell_syntax(joined_text)
    try:
        words = shlex.split(joined_text, comments=False)
    except ValueError as error:
        raise Refused(f"the command line cannot be split into words: {str(error).lower()}.") from None
    if len(words) > MAX_WORDS:
        raise Refused(f"the command line has more than {MAX_WORDS} words.")
    return words


def unwrap_shell(words: list[str]) -> list[str]:
    """Return the words of a command inside `bash -c "..."`, without `exec`; other words unchanged."""
    if len(words) >= 3 and words[0] in SHELLS and words[1].startswith("-") and words[1].endswith("c"):
        words = split_command(words[2])
    return words[1:] if words[:1] == ["exec"] else words


def split_assignments(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables set before a command (`A=1 vllm serve ...` or `env A=1 ...`), and the command."""
    remaining_words = words[1:] if words[:1] == ["env"] else list(words)
    variables: dict[str, str] = {}
    while remaining_words and _ASSIGNMENT_PATTERN.match(remaining_words[0]):
        name, _, value = remaining_words.pop(0).partition("=")
        variables[name] = value
    return variables, remaining_words


def find_variables(word: str) -> list[str]:
    """Return the shell variables in a word, such as $HOME or ${HOME}."""
    return _VARIABLE_PATTERN.findall(word)


def _reject_shell_syntax(text: str) -> None:
    """Raise Refused for the first unquoted shell syntax."""
    quote, is_escaped = "", False
    for n, char in enumerate(text):
        if is_escaped:
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif char in "\"'" and quote in ("", char):
            quote = "" if quote else char
        elif quote == "'":
            continue
        elif char == "`" or text.startswith("$(", n):
            raise _shell_error("a command substitution (`$(...)`)", text, n)
        elif not quote and char == "\n":
            raise _shell_error("a second command on a new line", text, n)
        elif not quote and char in SHELL_OPERATORS:
            raise _shell_error(SHELL_OPERATORS[char], text, n)


def _shell_error(syntax: str, text: str, position: int) -> Refused:
    # the text after the position is not shown, because it may be the rest of a key that contains this character
    context = one_line(secret_patterns.mask_text(text[:position])[-20:] + text[position : position + 1], max_chars=60)
    fix = "An import does not run a shell: remove this syntax, and import only the command that starts the server."
    return Refused(f"the command has {syntax}, at '{context}'.", fix=fix)
