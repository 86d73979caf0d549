"""The words of a `docker run` command, into which every format is turned: split, and read by the options' own table."""

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
#: other spellings of the table's options
ALIASES = {
    "--publish": "-p", "--volume": "-v", "--env": "-e", "-l": "--label", "-m": "--memory", "-w": "--workdir", "-u": "--user",
    "-h": "--hostname", "--net": "--network", "--dns-servers": "--dns",
}  # fmt: skip
#: options without a value, each with the reason that a recipe does not have it
SWITCHES = {
    "-d": "a deploy starts it in the background", "--detach": "a deploy starts it in the background",
    "-i": "no one types into a server", "--interactive": "no one types into a server",
    "-t": "no one types into a server", "--tty": "no one types into a server",
    "--rm": "the previous server is kept for a rollback", "--no-healthcheck": "sparkwright checks that it generates",
    "-P": "the server has one port, published by number", "--publish-all": "the server has one port, published by number",
    "--sig-proxy": "a deploy starts it in the background",
}  # fmt: skip
#: options with a value, each with the reason that a recipe does not have it
DROPPED_OPTIONS = {
    "--name": "", "--restart": "", "--entrypoint": "",
    "--runtime": "`gpus` gives it the GPU", "--pull": "spark.lock pins the image", "--platform": "a Spark's is linux/arm64",
    "--env-file": "its variables are not in the recipe: add them under container.env", "--cidfile": "",
    "--stop-timeout": "stop_timeout_s", "--cgroup-parent": "", "--pids-limit": "", "--userns": "", "--uts": "",
    "--storage-opt": "", "--volume-driver": "",
    "--health-cmd": "sparkwright checks that it generates", "--health-interval": "sparkwright checks that it generates",
    "--health-retries": "sparkwright checks that it generates", "--health-timeout": "sparkwright checks that it generates",
    "--health-start-period": "sparkwright checks that it generates",
}  # fmt: skip
RECIPE_FIELDS = {option.flag: name for name, option in reversed(DOCKER_OPTIONS.items())}
#: options of the table with a field of their own in `ForeignRecipe`
FOREIGN_FIELDS = {"-p": "ports", "-v": "volumes"}


def recipe_field(option: str) -> str:
    """Return a recipe's name of an option of `docker run`; "" if it has none. option: the long one, without its dashes."""
    return RECIPE_FIELDS.get(ALIASES.get(f"--{option}", f"--{option}"), "")


def matches(line: str) -> bool:
    """Return True if a text is a `docker run` command, perhaps with `sudo` and with comments before it."""
    words = _strip_comments(line).split(None, 4)
    words = words[1:] if words[:1] == ["sudo"] else words
    return words[:2] in (["docker", "run"], ["podman", "run"]) or words[:3] == ["docker", "container", "run"]


def parse(line: str, report: ImportReport) -> ForeignRecipe:
    """Return the container that a command line starts.

    Raises Refused for anything that needs a shell, and for unknown options.
    """
    words = split_command(_strip_comments(line))
    foreign = parse_arguments(words[words.index("run") + 1 :], ForeignRecipe(KIND, ""), report)
    foreign.name = str(foreign.options.get("name") or "")
    return foreign


def parse_arguments(words: list[str], foreign: ForeignRecipe, report: ImportReport) -> ForeignRecipe:
    """Fill in the container that `docker run` would start with these words: of a line, or of another format.

    Args:
        foreign: the recipe, with what else its format says.

    Returns:
        The same.

    Raises Refused for unknown options.
    """
    while words and words[0].startswith("-") and words[0] != "--":
        words = _parse_option(words, foreign, report)
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise Refused("the docker run line names no image.")
    foreign.image = words.pop(0)
    env, foreign.words = split_assignments(unwrap_shell([*(foreign.entrypoint or ()), *words]))
    foreign.env |= env
    return foreign


def build_arguments(image: str, command: Iterable[str], **options: Iterable[str]) -> list[str]:
    """Return the words behind `docker run`.

    Args:
        image: "" where the format names none.
        command: the words behind it.
        options: values by the option's name, as env=["A=1"].
    """
    options_words = [f"--{name.replace('_', '-')}={value}" for name, values in options.items() for value in values]
    return [*options_words, "--", image, *command]


def format_pairs(values: Mapping[str, str]) -> list[str]:
    """Return NAME=VALUE of each."""
    return [f"{name}={value}" for name, value in values.items()]


def extract_options(
    words: Sequence[str], is_flag: Callable[[str], bool], foreign: ForeignRecipe, report: ImportReport
) -> list[str]:
    """Take Docker's options out of the words behind the image, where Docker hands them to the engine, which does not have them.

    Args:
        words: of the engine's command.
        is_flag: whether a word is the engine's own option.
        foreign: receives the options.
        report: gets a row for each.

    Returns:
        The engine's words.
    """
    engine_words: list[str] = []
    rest = list(words)
    while rest:
        flag = rest[0].partition("=")[0]
        docker = ALIASES.get(flag, flag)
        if (
            not docker.startswith("-")
            or is_flag(rest[0])
            or not (docker in SWITCHES or docker in RECIPE_FIELDS or docker in DROPPED_OPTIONS)
        ):
            engine_words.append(rest.pop(0))
            continue
        remaining = _parse_option(rest, foreign, report)
        option = " ".join(rest[: len(rest) - len(remaining)])
        report.add(
            "translated", option, "it stands behind the image, where the engine would get it: read as Docker's option"
        )
        rest = remaining
    return engine_words


def _strip_comments(line: str) -> str:
    """Return the text without comments and a shell prompt, which people paste along."""
    rows = [row for row in line.strip().splitlines() if not row.lstrip().startswith("#")]
    return "\n".join(rows).strip().removeprefix("$ ")


def _parse_option(words: list[str], foreign: ForeignRecipe, report: ImportReport) -> list[str]:
    """Remove one option from the words and return the rest."""
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
    kind = get_type_hints(ContainerSpec).get(name)
    if kind in (bool, bool | None):
        foreign.options[name] = value.lower() != "false" if equals else True
        return rest
    if not name and flag not in DROPPED_OPTIONS and flag != "--mount":
        fix = "Take it out, and add what it means to the recipe by hand."
        raise Refused(
            f"`{one_line(flag, max_chars=60)}` is not an option of docker run that sparkwright knows.", fix=fix
        )
    if not equals:
        if not rest:
            raise Refused(f"`{flag}` of the docker run line has no value.")
        value, rest = rest[0], rest[1:]
    _set_option(flag, name, kind, value, foreign, report)
    return rest


def _set_option(flag: str, name: str, kind: Any, value: str, foreign: ForeignRecipe, report: ImportReport) -> None:
    if flag == "--mount":
        _parse_mount(value, foreign, report)
    elif flag == "--entrypoint":
        foreign.entrypoint = [value] if value else []
    elif flag in ("--name", "--restart"):
        foreign.options[flag.removeprefix("--")] = value
    elif flag == "--stop-timeout" and value.isdigit():
        foreign.options["stop_timeout_s"] = int(value)
    elif flag in DROPPED_OPTIONS:
        report.add("dropped", f"{flag} {value}", DROPPED_OPTIONS[flag] or "it has no place in a recipe")
    elif flag in FOREIGN_FIELDS:
        getattr(foreign, FOREIGN_FIELDS[flag]).append(value)
    elif name == "env":
        key, equals, text = value.partition("=")
        foreign.env[key] = text if equals else f"${key}"
    elif name == "network":
        foreign.network = value
    elif kind == tuple[str, ...]:
        foreign.options[name] = (*foreign.options.get(name, ()), value)
    elif kind == dict[str, str]:
        key, _, text = value.partition("=")
        foreign.options[name] = {**foreign.options.get(name, {}), key: text}
    elif kind in (int, float):
        foreign.options[name] = _parse_number(kind, name, value)
    else:
        foreign.options[name] = value.strip('"') if name == "gpus" else value


def _parse_number(kind: Any, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        number = "whole number" if kind is int else "number"
        raise Refused(f"`{name}` must be a {number}, got '{one_line(value, max_chars=40)}'.") from None


def _parse_mount(value: str, foreign: ForeignRecipe, report: ImportReport) -> None:
    parts = dict(part.partition("=")[::2] for part in value.split(","))
    source, target = (
        next((parts[key] for key in keys if key in parts), "")
        for keys in (("source", "src"), ("target", "dst", "destination"))
    )
    if parts.get("type") == "bind" and source and target:
        foreign.volumes.append(f"{source}:{target}{':ro' if 'readonly' in parts or 'ro' in parts else ''}")
    else:
        report.add("dropped", f"--mount {value}", "only folders of the host are mounted")


#: shell syntax, with its names
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


def split_command(line: str) -> list[str]:
    """Return the words of one command. Raises Refused for several commands, and for anything that a shell would run or expand."""
    if len(line) > MAX_CHARS:
        raise Refused(f"the command line is longer than {MAX_CHARS} characters.")
    joined = _CONTINUED.sub(" ", line).rstrip().rstrip("\\").strip()
    _refuse_shell(joined)
    try:
        words = shlex.split(joined, comments=False)
    except ValueError as error:
        raise Refused(f"the command line cannot be split into words: {str(error).lower()}.") from None
    if len(words) > MAX_WORDS:
        raise Refused(f"the command line has more than {MAX_WORDS} words.")
    return words


def unwrap_shell(words: list[str]) -> list[str]:
    """Return the words of a command given to a shell as text (`bash -c "vllm serve ..."`), without `exec`."""
    if len(words) >= 3 and words[0] in SHELLS and words[1].startswith("-") and words[1].endswith("c"):
        words = split_command(words[2])
    return words[1:] if words[:1] == ["exec"] else words


def split_assignments(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables before a command (`A=1 vllm serve ...`, also after `env`), and the command."""
    rest = words[1:] if words[:1] == ["env"] else list(words)
    variables_set: dict[str, str] = {}
    while rest and _ASSIGNMENT.match(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        variables_set[name] = value
    return variables_set, rest


def find_variables(word: str) -> list[str]:
    """Return the shell variables in a word, as $HOME or ${HOME}."""
    return _VARIABLE.findall(word)


def _refuse_shell(line: str) -> None:
    """Raise Refused for the first shell syntax outside of quotes."""
    quote, skip = "", False
    for n, letter in enumerate(line):
        if skip:
            skip = False
        elif letter == "\\" and quote != "'":
            skip = True
        elif letter in "\"'" and quote in ("", letter):
            quote = "" if quote else letter
        elif quote == "'":
            continue
        elif letter == "`" or line.startswith("$(", n):
            raise _shell_error("a command in its place (`$(...)`)", line, n)
        elif not quote and letter == "\n":
            raise _shell_error("a second command, on a line of its own", line, n)
        elif not quote and letter in SHELL_OPERATORS:
            raise _shell_error(SHELL_OPERATORS[letter], line, n)


def _shell_error(syntax: str, line: str, at: int) -> Refused:
    # what follows may be the rest of a key that has this sign in it
    near = one_line(secret_patterns.mask_text(line[:at])[-20:] + line[at : at + 1], max_chars=60)
    fix = (
        "Nothing of an imported recipe is run: take out what only a shell does, and import the one command that serves."
    )
    return Refused(f"the command has {syntax}, at '{near}'.", fix=fix)
