"""A `docker run ...` command: options, parsed with the table that recipes, plans and the run script use; image; command."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_type_hints

from sparkwright.errors import Refused
from sparkwright.project.importing.foreign import Foreign, Report
from sparkwright.project.importing.shell_words import assignments, split, unwrapped
from sparkwright.protocol.container import DOCKER_OPTIONS, ContainerSpec
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


def is_one(line: str) -> bool:
    """Return True if a text is a `docker run` command, perhaps with `sudo` and with comments before it."""
    words = _plain(line).split(None, 4)
    words = words[1:] if words[:1] == ["sudo"] else words
    return words[:2] in (["docker", "run"], ["podman", "run"]) or words[:3] == ["docker", "container", "run"]


def read(line: str, report: Report) -> Foreign:
    """Return the container that the command starts.

    Raises Refused for anything that needs a shell, and for unknown options.
    """
    words = split(_plain(line))
    words = words[words.index("run") + 1 :]
    found = Foreign(KIND, "")
    while words and words[0].startswith("-") and words[0] != "--":
        words = _option(words, found, report)
    words = words[1:] if words[:1] == ["--"] else words
    if not words:
        raise Refused("the docker run line names no image.")
    found.image = words.pop(0)
    env, found.words = assignments(unwrapped([*(found.entrypoint or ()), *words]))
    found.env |= env
    found.name = str(found.options.get("name") or "")
    return found


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
        found.options[name] = _number(kind, flag, value)
    else:
        found.options[name] = value.strip('"') if name == "gpus" else value


def _number(kind: Any, flag: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise Refused(f"`{flag}` must be a number, got '{one_line(value, at_most=40)}'.") from None


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
