"""Parses `docker run` commands. Readers of other formats build such arguments too, and parse them here."""

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
SWITCHES = {
    "-d": "servers always run in the background", "--detach": "servers always run in the background",
    "-i": "a server needs no terminal", "--interactive": "a server needs no terminal",
    "-t": "a server needs no terminal", "--tty": "a server needs no terminal",
    "--rm": "the previous server is kept for a rollback", "--no-healthcheck": "sparkwright checks that the server generates",
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
        "sparkwright checks that the server generates",
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
_CONTINUED = re.compile(r"\\[ \t]*\r?\n")
_VARIABLE = re.compile(r"\$(?:\{[^}]{0,200}\}|[A-Za-z_]\w{0,100})")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w{0,100}=")
SHELLS = frozenset(("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash"))


def recipe_field(option: str) -> str:
    """Return the name of a `docker run` option in recipes, or "". option: long form without dashes."""
    return RECIPE_FIELDS.get(ALIASES.get(f"--{option}", f"--{option}"), "")


def matches(line: str) -> bool:
    """Return True if a text is a `docker run` command, with or without `sudo` and leading comments."""
    words = _strip_comments(line).split(None, 4)
    words = words[1:] if words[:1] == ["sudo"] else words
    return words[:2] in (["docker", "run"], ["podman", "run"]) or words[:3] == ["docker", "container", "run"]


def parse(line: str, report: ImportReport) -> ForeignRecipe:
    """Return the recipe of a `docker run` command. Raises Refused for shell syntax and unknown options."""
    words = split_command(_strip_comments(line))
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
    """Move Docker's options that follow the image, and would be passed to the engine, to `foreign`. Return the other words.

    Args:
        words: the words after the image.
        is_flag: returns True for an option of the engine.
    """
    engine_words: list[str] = []
    rest = list(words)
    while rest:
        flag = rest[0].partition("=")[0]
        docker_flag = ALIASES.get(flag, flag)
        is_docker_option = any(docker_flag in table for table in (SWITCHES, RECIPE_FIELDS, DROPPED_OPTIONS))
        if not docker_flag.startswith("-") or is_flag(rest[0]) or not is_docker_option:
            engine_words.append(rest.pop(0))
            continue
        remaining = _parse_option(rest, foreign, report)
        option = " ".join(rest[: len(rest) - len(remaining)])
        report.add("translated", option, "an option after the image, where Docker would pass it to the engine")
        rest = remaining
    return engine_words


def _strip_comments(line: str) -> str:
    """Return a pasted text without comments and shell prompt."""
    lines = [line for line in line.strip().splitlines() if not line.lstrip().startswith("#")]
    return "\n".join(lines).strip().removeprefix("$ ")


def _parse_option(words: list[str], foreign: ForeignRecipe, report: ImportReport) -> list[str]:
    """Parse the option at the beginning of the words, and return the words after it."""
    first = words[0]
    if len(first) > 2 and first[:2] in SWITCHES:  # -itd, -dp 8000:8000
        words = [first[:2], f"-{first[2:]}", *words[1:]]
    flag, equals, value = words[0].partition("=")
    rest = words[1:]
    if (
        not flag.startswith("--")
        and flag not in SWITCHES
        and flag[:2] in ("-p", "-v", "-e", "-w", "-u", "-h", "-m", "-l")
        and len(flag) > 2
    ):
        flag, equals, value = flag[:2], "=", words[0][2:]
    flag = ALIASES.get(flag, flag)
    if flag in SWITCHES:
        report.add("dropped", flag, SWITCHES[flag])
        return rest
    name = RECIPE_FIELDS.get(flag, "")
    value_type = get_type_hints(ContainerSpec).get(name)
    if value_type in (bool, bool | None):
        foreign.options[name] = value.lower() != "false" if equals else True
        return rest
    if not name and flag not in DROPPED_OPTIONS and flag != "--mount":
        fix = "Remove it, and add an equivalent setting to the recipe by hand."
        raise Refused(f"unknown option `{one_line(flag, max_chars=60)}` of docker run.", fix=fix)
    if not equals:
        if not rest:
            raise Refused(f"`{flag}` of the docker run command has no value.")
        value, rest = rest[0], rest[1:]
    _set_option(flag, name, value_type, value, foreign, report)
    return rest


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
    elif flag in DROPPED_OPTIONS:
        report.add("dropped", f"{flag} {value}", DROPPED_OPTIONS[flag] or "recipes have no such option")
    elif flag in FOREIGN_FIELDS:
        getattr(foreign, FOREIGN_FIELDS[flag]).append(value)
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


def split_command(line: str) -> list[str]:
    """Return the words of a single command. Raises Refused for several commands, and for syntax that needs a shell."""
    if len(line) > MAX_CHARS:
        raise Refused(f"the command line is longer than {MAX_CHARS} characters.")
    joined_line = _CONTINUED.sub(" ", line).rstrip().rstrip("\\").strip()
    _refuse_shell(joined_line)
    try:
        words = shlex.split(joined_line, comments=False)
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
    rest = words[1:] if words[:1] == ["env"] else list(words)
    variables: dict[str, str] = {}
    while rest and _ASSIGNMENT.match(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        variables[name] = value
    return variables, rest


def find_variables(word: str) -> list[str]:
    """Return the shell variables in a word, such as $HOME or ${HOME}."""
    return _VARIABLE.findall(word)


def _refuse_shell(line: str) -> None:
    """Raise Refused for the first unquoted shell syntax."""
    quote, is_escaped = "", False
    for n, char in enumerate(line):
        if is_escaped:
            is_escaped = False
        elif char == "\\" and quote != "'":
            is_escaped = True
        elif char in "\"'" and quote in ("", char):
            quote = "" if quote else char
        elif quote == "'":
            continue
        elif char == "`" or line.startswith("$(", n):
            raise _shell_error("a command substitution (`$(...)`)", line, n)
        elif not quote and char == "\n":
            raise _shell_error("a second command on a new line", line, n)
        elif not quote and char in SHELL_OPERATORS:
            raise _shell_error(SHELL_OPERATORS[char], line, n)


def _shell_error(syntax: str, line: str, position: int) -> Refused:
    # the text after the position is not shown, because it may be the rest of a key that contains this character
    context = one_line(secret_patterns.mask_text(line[:position])[-20:] + line[position : position + 1], max_chars=60)
    fix = "An import does not run a shell: remove this syntax, and import only the command that starts the server."
    return Refused(f"the command has {syntax}, at '{context}'.", fix=fix)
