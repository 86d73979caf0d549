"""The words of a `docker run` command, into which every format is turned: split, and read by the options' own table."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from sparkwright.errors import Refused
from sparkwright.project.importing.foreign import MOST_CHARS, MOST_WORDS, Foreign, Report
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
BARE = {
    "-d": "a deploy starts it in the background", "--detach": "a deploy starts it in the background",
    "-i": "no one types into a server", "--interactive": "no one types into a server",
    "-t": "no one types into a server", "--tty": "no one types into a server",
    "--rm": "the previous server is kept for a rollback", "--no-healthcheck": "sparkwright checks that it generates",
    "-P": "the server has one port, published by number", "--publish-all": "the server has one port, published by number",
    "--sig-proxy": "a deploy starts it in the background",
}  # fmt: skip
#: options with a value, each with the reason that a recipe does not have it
DROPPED = {
    "--name": "", "--restart": "", "--entrypoint": "",
    "--runtime": "`gpus` gives it the GPU", "--pull": "spark.lock pins the image", "--platform": "a Spark's is linux/arm64",
    "--env-file": "its variables are not in the recipe: add them under container.env", "--cidfile": "",
    "--stop-timeout": "stop_timeout_s", "--cgroup-parent": "", "--pids-limit": "", "--userns": "", "--uts": "",
    "--storage-opt": "", "--volume-driver": "",
    "--health-cmd": "sparkwright checks that it generates", "--health-interval": "sparkwright checks that it generates",
    "--health-retries": "sparkwright checks that it generates", "--health-timeout": "sparkwright checks that it generates",
    "--health-start-period": "sparkwright checks that it generates",
}  # fmt: skip
FIELDS = {option.flag: name for name, option in reversed(DOCKER_OPTIONS.items())}
#: options of the table with a field of their own in `Foreign`
APART = {"-p": "ports", "-v": "volumes"}


def field_of(option: str) -> str:
    """Return a recipe's name of an option of `docker run`; "" if it has none. option: the long one, without its dashes."""
    return FIELDS.get(ALIASES.get(f"--{option}", f"--{option}"), "")


def is_one(line: str) -> bool:
    """Return True if a text is a `docker run` command, perhaps with `sudo` and with comments before it."""
    words = _plain(line).split(None, 4)
    words = words[1:] if words[:1] == ["sudo"] else words
    return words[:2] in (["docker", "run"], ["podman", "run"]) or words[:3] == ["docker", "container", "run"]


def read(line: str, report: Report) -> Foreign:
    """Return the container that a command line starts.

    Raises Refused for anything that needs a shell, and for unknown options.
    """
    words = split(_plain(line))
    found = of_words(words[words.index("run") + 1 :], Foreign(KIND, ""), report)
    found.name = str(found.options.get("name") or "")
    return found


def of_words(words: list[str], found: Foreign, report: Report) -> Foreign:
    """Fill in the container that `docker run` would start with these words: of a line, or of another format.

    Args:
        found: what else the format says.

    Returns:
        The same.

    Raises Refused for unknown options.
    """
    while words and words[0].startswith("-") and words[0] != "--":
        words = _option(words, found, report)
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise Refused("the docker run line names no image.")
    found.image = words.pop(0)
    env, found.words = assignments(unwrapped([*(found.entrypoint or ()), *words]))
    found.env |= env
    return found


def words_of(image: str, command: Iterable[str], **options: Iterable[str]) -> list[str]:
    """Return the words behind `docker run`.

    Args:
        image: "" where the format names none.
        command: the words behind it.
        options: values by the option's name, as env=["A=1"].
    """
    given = [f"--{name.replace('_', '-')}={value}" for name, values in options.items() for value in values]
    return [*given, "--", image, *command]


def pairs(values: Mapping[str, str]) -> list[str]:
    """Return NAME=VALUE of each."""
    return [f"{name}={value}" for name, value in values.items()]


def taken_from(words: Sequence[str], is_flag: Callable[[str], bool], found: Foreign, report: Report) -> list[str]:
    """Take Docker's options out of the words behind the image, where Docker hands them to the engine, which does not have them.

    Args:
        words: of the engine's command.
        is_flag: whether a word is the engine's own option.
        found: gets the options.
        report: gets a row for each.

    Returns:
        The engine's words.
    """
    kept: list[str] = []
    rest = list(words)
    while rest:
        flag = rest[0].partition("=")[0]
        docker = ALIASES.get(flag, flag)
        if (
            not docker.startswith("-")
            or is_flag(rest[0])
            or not (docker in BARE or docker in FIELDS or docker in DROPPED)
        ):
            kept.append(rest.pop(0))
            continue
        left = _option(rest, found, report)
        option = " ".join(rest[: len(rest) - len(left)])
        report.add(
            "translated", option, "it stands behind the image, where the engine would get it: read as Docker's option"
        )
        rest = left
    return kept


def _plain(line: str) -> str:
    """Return the text without comments and a shell prompt, which people paste along."""
    rows = [row for row in line.strip().splitlines() if not row.lstrip().startswith("#")]
    return "\n".join(rows).strip().removeprefix("$ ")


def _option(words: list[str], found: Foreign, report: Report) -> list[str]:
    """Remove one option from the words and return the rest."""
    first = words[0]
    if len(first) > 2 and first[:2] in BARE:  # -itd, -dp 8000:8000
        words = [first[:2], f"-{first[2:]}", *words[1:]]
    flag, equals, value = words[0].partition("=")
    rest = words[1:]
    if (
        not flag.startswith("--")
        and flag not in BARE
        and flag[:2] in ("-p", "-v", "-e", "-w", "-u", "-h", "-m", "-l")
        and len(flag) > 2
    ):
        flag, equals, value = flag[:2], "=", words[0][2:]
    flag = ALIASES.get(flag, flag)
    if flag in BARE:
        report.add("dropped", flag, BARE[flag])
        return rest
    name = FIELDS.get(flag, "")
    kind = get_type_hints(ContainerSpec).get(name)
    if kind in (bool, bool | None):
        found.options[name] = value.lower() != "false" if equals else True
        return rest
    if not name and flag not in DROPPED and flag != "--mount":
        fix = "Take it out, and add what it means to the recipe by hand."
        raise Refused(f"`{one_line(flag, at_most=60)}` is not an option of docker run that sparkwright knows.", fix=fix)
    if not equals:
        if not rest:
            raise Refused(f"`{flag}` of the docker run line has no value.")
        value, rest = rest[0], rest[1:]
    _set(flag, name, kind, value, found, report)
    return rest


def _set(flag: str, name: str, kind: Any, value: str, found: Foreign, report: Report) -> None:
    if flag == "--mount":
        _mount(value, found, report)
    elif flag == "--entrypoint":
        found.entrypoint = [value] if value else []
    elif flag in ("--name", "--restart"):
        found.options[flag.removeprefix("--")] = value
    elif flag == "--stop-timeout" and value.isdigit():
        found.options["stop_timeout_s"] = int(value)
    elif flag in DROPPED:
        report.add("dropped", f"{flag} {value}", DROPPED[flag] or "it has no place in a recipe")
    elif flag in APART:
        getattr(found, APART[flag]).append(value)
    elif name == "env":
        key, equals, text = value.partition("=")
        found.env[key] = text if equals else f"${key}"
    elif name == "network":
        found.network = value
    elif kind == tuple[str, ...]:
        found.options[name] = (*found.options.get(name, ()), value)
    elif kind == dict[str, str]:
        key, _, text = value.partition("=")
        found.options[name] = {**found.options.get(name, {}), key: text}
    elif kind in (int, float):
        found.options[name] = _number(kind, name, value)
    else:
        found.options[name] = value.strip('"') if name == "gpus" else value


def _number(kind: Any, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        number = "whole number" if kind is int else "number"
        raise Refused(f"`{name}` must be a {number}, got '{one_line(value, at_most=40)}'.") from None


def _mount(value: str, found: Foreign, report: Report) -> None:
    parts = dict(part.partition("=")[::2] for part in value.split(","))
    source, target = (
        next((parts[key] for key in keys if key in parts), "")
        for keys in (("source", "src"), ("target", "dst", "destination"))
    )
    if parts.get("type") == "bind" and source and target:
        found.volumes.append(f"{source}:{target}{':ro' if 'readonly' in parts or 'ro' in parts else ''}")
    else:
        report.add("dropped", f"--mount {value}", "only folders of the host are mounted")


#: shell syntax, with its names
OPERATORS = {
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


def split(line: str) -> list[str]:
    """Return the words of one command. Raises Refused for several commands, and for anything that a shell would run or expand."""
    if len(line) > MOST_CHARS:
        raise Refused(f"the command line is longer than {MOST_CHARS} characters.")
    joined = _CONTINUED.sub(" ", line).rstrip().rstrip("\\").strip()
    _refuse_shell(joined)
    try:
        words = shlex.split(joined, comments=False)
    except ValueError as error:
        raise Refused(f"the command line cannot be split into words: {str(error).lower()}.") from None
    if len(words) > MOST_WORDS:
        raise Refused(f"the command line has more than {MOST_WORDS} words.")
    return words


def unwrapped(words: list[str]) -> list[str]:
    """Return the words of a command given to a shell as text (`bash -c "vllm serve ..."`), without `exec`."""
    if len(words) >= 3 and words[0] in SHELLS and words[1].startswith("-") and words[1].endswith("c"):
        words = split(words[2])
    return words[1:] if words[:1] == ["exec"] else words


def assignments(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables before a command (`A=1 vllm serve ...`, also after `env`), and the command."""
    rest = words[1:] if words[:1] == ["env"] else list(words)
    found: dict[str, str] = {}
    while rest and _ASSIGNMENT.match(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        found[name] = value
    return found, rest


def variables(word: str) -> list[str]:
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
            raise _refused("a command in its place (`$(...)`)", line, n)
        elif not quote and letter == "\n":
            raise _refused("a second command, on a line of its own", line, n)
        elif not quote and letter in OPERATORS:
            raise _refused(OPERATORS[letter], line, n)


def _refused(what: str, line: str, at: int) -> Refused:
    # what follows may be the rest of a key that has this sign in it
    near = one_line(secret_patterns.text(line[:at])[-20:] + line[at : at + 1], at_most=60)
    fix = (
        "Nothing of an imported recipe is run: take out what only a shell does, and import the one command that serves."
    )
    return Refused(f"the command has {what}, at '{near}'.", fix=fix)
