"""A compose file: the one service that serves. Source: the Compose specification (services, interpolation)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.importing import command, docker_words
from sparkwright.project.importing.docker_words import split
from sparkwright.project.importing.foreign import (
    COMMAND,
    VARIABLES,
    WORD,
    Foreign,
    Report,
    either,
    mapping,
    partly,
    scalar,
    text,
    texts,
    words,
)
from sparkwright.trust.secret_names import names_a_secret
from sparkwright.visible import one_line

KIND = "a compose file"
#: the key of a service that extends another, often in another file
EXTENDS = "extends"
_VARIABLE = re.compile(r"\$\$|\$\{(\w{1,100})(?:(:?[-?+])([^}]{0,500}))?\}|\$(\w{1,100})")
#: keys of a service with the equivalent option of `docker run`
OPTIONS = {
    "environment": "env", "ports": "publish", "volumes": "volume", "network_mode": "network", "container_name": "name",
    "ipc": "ipc", "shm_size": "shm-size", "user": "user", "working_dir": "workdir", "hostname": "hostname", "pid": "pid",
    "init": "init", "privileged": "privileged", "stop_signal": "stop-signal", "restart": "restart", "mem_limit": "memory",
    "memswap_limit": "memory-swap", "oom_score_adj": "oom-score-adj", "cpuset": "cpuset-cpus", "cap_add": "cap-add",
    "cap_drop": "cap-drop", "security_opt": "security-opt", "devices": "device", "extra_hosts": "add-host", "dns": "dns",
    "tmpfs": "tmpfs", "group_add": "group-add", "ulimits": "ulimit", "labels": "label", "cpus": "cpus", "sysctls": "sysctl",
}  # fmt: skip
#: keys with NAME=VALUE, as a mapping or a list
NAMED = ("environment", "labels", "sysctls")
LISTS = ("cap_add", "cap_drop", "security_opt", "devices", "dns", "tmpfs", "group_add")
READ = {"image", "command", "entrypoint", "deploy"}
_PORT = partly(published=scalar, target=scalar)
_VOLUME = partly(source=scalar, target=scalar)
_LIMIT = either("a number or a mapping", (WORD, scalar), (dict, partly(soft=scalar, hard=scalar)))
_NAMED = either("a mapping or a list", (dict, VARIABLES), (list, words))
_LIST = either("a list", (WORD, scalar), (list, words))
_DEVICES = partly(resources=partly(reservations=partly(devices=[object]), limits={}))
_SERVICE = {
    **partly(**{key: _LIST if key in LISTS else scalar for key in OPTIONS}, image=scalar),
    **partly(command=COMMAND, entrypoint=COMMAND, **dict.fromkeys((*NAMED, "extra_hosts"), _NAMED)),
    **partly(ports=[either("a port or a mapping", (WORD, scalar), (dict, _PORT))]),
    **partly(volumes=[either("a text or a mapping", (str, scalar), (dict, _VOLUME))]),
    **partly(ulimits={str: _LIMIT}, deploy=_DEVICES),
}
#: shape of a file, checked before it is read
SHAPE = {"services": {str: (None, _SERVICE)}}
DROPPED = {
    "healthcheck": "sparkwright checks that it generates (`health.install`)",
    "depends_on": "a recipe starts one container",
    "env_file": "its variables are not in the file: add them under container.env",
    "networks": "Docker's own bridge is used, and the port published",
    "runtime": "`gpus` gives it the GPU",
    "logging": "Docker's own log driver; `log_driver` and `log_options` set another",
    "build": "nothing is built; `image` names what is pulled",
    "platform": "a Spark's is linux/arm64",
}


def is_one(data: dict[str, Any]) -> bool:
    """Return True if a YAML file has this format."""
    return isinstance(data.get("services"), dict)


def read(data: dict[str, Any], report: Report) -> Foreign:
    """Return the container of the service. Raises Refused for a file without a server."""
    name, service = _service(mapping(data["services"]), report)
    fill = _filler(report)
    image = fill(text(service.get("image")))
    if not image and "build" in service:
        sentence = "its image is built from a folder: which image, as REPOSITORY:TAG"
        image = report.ask("image", sentence) or "owner/image:tag"
    program = _words(service.get("entrypoint"), fill)
    command_words = [*program[1:], *_words(service.get("command"), fill)]
    given = {"entrypoint": program[:1]}
    for key, value in service.items():
        if key in OPTIONS:
            given[OPTIONS[key]] = [fill(word) for word in _values(key, value)]
        elif key == "deploy":
            _deploy(mapping(value), report)
        elif key not in READ:
            report.add("dropped", str(key), DROPPED.get(key, "it has no place in a recipe"))
    return docker_words.of_words(docker_words.words_of(image, command_words, **given), Foreign(KIND, name), report)


def _service(services: dict[str, Any], report: Report) -> tuple[str, dict[str, Any]]:
    if not services:
        raise Refused("`services` is empty.")
    held = {name: mapping(service) for name, service in services.items()}
    names = [name for name, value in held.items() if "image" in value or "build" in value or EXTENDS in value]
    if not names:
        raise Refused("no service of the compose file has an image.")
    serving = names if len(names) == 1 else [name for name in names if _serves(held[name])]
    answer = report.given("service") or (serving[0] if len(serving) == 1 else "")
    if answer not in names:
        answer = report.ask("service", f"which service serves the model: {', '.join(names)}", names)
    for other in names:
        if answer and other != answer:
            report.add("dropped", f"service {other}", "a recipe starts one container")
    name = answer or names[0]
    if EXTENDS in held[name]:
        fix = "`docker compose config` prints the file with everything filled in: import that."
        raise Refused(f"the service {one_line(name, at_most=60)} is a change to another one (`{EXTENDS}`).", fix=fix)
    return name, held[name]


def _serves(service: dict[str, Any]) -> bool:
    """Return True if a service names an engine, in its image or in the first words of its command."""
    words = (service.get("entrypoint"), service.get("command"))
    text_of_words = " ".join(
        str(word) for item in words for word in (item if isinstance(item, list) else [item]) if word
    )
    return bool(
        command.engine_named([*text_of_words.split()[: command.PROGRAM_WORDS], str(service.get("image") or "")])
    )


def _filler(report: Report) -> Callable[[str], str]:
    """Return a function that fills in a compose file's variables: with their defaults, else the user is asked."""

    def one(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name, operator, default = match[1] or match[4], match[2] or "", match[3] or ""
        if names_a_secret(name):
            return default if operator.endswith("-") else match[0]  # neither asked for nor shown
        if operator.endswith("-"):
            report.add("note", f"${{{name}}}", f"its default, '{one_line(default, at_most=60)}'")
            return default
        if name in ("HOME", "PWD"):
            return match[0]
        return report.ask(f"variable.{name}", f"the file takes {name} from its environment") or match[0]

    return lambda written: _VARIABLE.sub(one, written)


def _words(value: Any, fill: Callable[[str], str]) -> list[str]:
    if isinstance(value, list):
        return [fill(word) for word in texts(value)]
    return split(fill(text(value))) if value else []


def _values(key: str, value: Any) -> list[str]:
    """Return the values of `docker run`'s option that a key of a service gives."""
    if value is None:
        return []
    if key in NAMED:
        return _pairs(value, key)
    if isinstance(value, dict):
        between = "=" if key == "ulimits" else ":"
        return [f"{name}{between}{_parted(item, 'soft', 'hard')}" for name, item in value.items()]
    names = {"ports": ("published", "target"), "volumes": ("source", "target")}.get(key, ())
    return [_parted(item, *names) for item in (value if isinstance(value, list) else [value])]


def _parted(item: Any, *names: str) -> str:
    """Return a value that Docker writes with colons, and compose also as a mapping."""
    if not isinstance(item, dict):
        return text(item)
    return ":".join([*(text(item.get(name)) for name in names), *(["ro"] if item.get("read_only") is True else [])])


def _pairs(value: Any, key: str) -> list[str]:
    """Return NAME=VALUE of each; a bare name of a variable is taken from the environment there."""
    rows = value.items() if isinstance(value, dict) else [item.partition("=")[::2] for item in texts(value)]
    bare = {name for name, item in rows if item is None} if isinstance(value, dict) else {*texts(value)}
    unset = "${{{}}}" if key == "environment" else ""
    return [f"{name}={unset.format(name) if name in bare else text(item)}" for name, item in rows]


def _deploy(deploy: dict[str, Any], report: Report) -> None:
    resources = mapping(deploy.pop("resources", None))
    reserved = mapping(resources.pop("reservations", None))
    if reserved.pop("devices", None):
        report.add("translated", "deploy: devices", "gpus: all, a recipe's default")
    for key in (*reserved, *resources, *deploy):
        report.add("dropped", f"deploy: {key}", "it has no place in a recipe")
