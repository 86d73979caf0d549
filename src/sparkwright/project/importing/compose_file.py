"""A compose file: the one service that serves. Source: the Compose specification (services, interpolation)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.importing import command
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
from sparkwright.project.importing.shell_words import assignments, split, unwrapped
from sparkwright.trust.secret_names import names_a_secret
from sparkwright.visible import one_line

KIND = "a compose file"
#: the key of a service that extends another, often in another file
EXTENDS = "extends"
_VARIABLE = re.compile(r"\$\$|\$\{(\w{1,100})(?:(:?[-?+])([^}]{0,500}))?\}|\$(\w{1,100})")
#: keys of a service with the name of the recipe container's option
SAME = {
    "ipc": "ipc", "shm_size": "shm_size", "user": "user", "working_dir": "working_dir", "hostname": "hostname", "pid": "pid",
    "init": "init", "privileged": "privileged", "stop_signal": "stop_signal", "restart": "restart", "mem_limit": "memory",
    "memswap_limit": "memory_swap", "oom_score_adj": "oom_score_adj", "cpuset": "cpuset_cpus", "container_name": "name",
}  # fmt: skip
LISTS = {
    "cap_add": "cap_add", "cap_drop": "cap_drop", "security_opt": "security_opt", "devices": "devices",
    "extra_hosts": "extra_hosts", "dns": "dns", "tmpfs": "tmpfs", "group_add": "group_add",
}  # fmt: skip
READ = {
    "image",
    "command",
    "entrypoint",
    "environment",
    "ports",
    "volumes",
    "network_mode",
    "ulimits",
    "labels",
    "deploy",
}
_PORT = partly(published=scalar, target=scalar)
_VOLUME = partly(source=scalar, target=scalar)
_LIMIT = either("a number or a mapping", (WORD, scalar), (dict, partly(soft=scalar, hard=scalar)))
_NAMED = either("a mapping or a list", (dict, VARIABLES), (list, words))
_LIST = either("a list", (WORD, scalar), (list, words))
_DEVICES = partly(resources=partly(reservations=partly(devices=[object]), limits={}))
_SERVICE = {
    **partly(image=scalar, network_mode=scalar, command=COMMAND, entrypoint=COMMAND, environment=_NAMED, labels=_NAMED),
    **partly(ports=[either("a port or a mapping", (WORD, scalar), (dict, _PORT))]),
    **partly(volumes=[either("a text or a mapping", (str, scalar), (dict, _VOLUME))]),
    **partly(ulimits={str: _LIMIT}, deploy=_DEVICES),
    **partly(**dict.fromkeys(SAME, scalar), **dict.fromkeys(LISTS, _LIST)),
    **partly(extra_hosts=_NAMED),
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
    name, service = _service(mapping(data["services"], "services"), report)
    fill = _filler(report)
    image = fill(text(service.get("image"), "image"))
    if not image and "build" in service:
        sentence = "its image is built from a folder: which image, as REPOSITORY:TAG"
        image = report.ask("image", sentence) or "owner/image:tag"
    entrypoint = _words(service.get("entrypoint"), "entrypoint", fill)
    found = Foreign(KIND, name, image=image, entrypoint=entrypoint or None)
    env, found.words = assignments(unwrapped([*entrypoint, *_words(service.get("command"), "command", fill)]))
    found.env = {key: fill(value) for key, value in _pairs(service.get("environment"), "environment").items()} | env
    found.ports = [_port(port, fill) for port in service.get("ports") or ()]
    found.volumes = [_volume(volume, fill) for volume in service.get("volumes") or ()]
    found.network = text(service.get("network_mode"), "network_mode")
    _options(service, found, fill, report)
    return found


def _service(services: dict[str, Any], report: Report) -> tuple[str, dict[str, Any]]:
    if not services:
        raise Refused("`services` is empty.")
    held = {name: mapping(service, f"services.{name}") for name, service in services.items()}
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


def _words(value: Any, what: str, fill: Callable[[str], str]) -> list[str]:
    if isinstance(value, list):
        return [fill(word) for word in texts(value, what)]
    return split(fill(text(value, what))) if value else []


def _pairs(value: Any, what: str) -> dict[str, str]:
    """Return a mapping, or a list of NAME=VALUE, as a dict; a bare name is taken from the environment there."""
    if isinstance(value, list):
        rows = (item.partition("=") for item in texts(value, what))
        return {name: given if equals else f"${{{name}}}" for name, equals, given in rows}
    return {
        name: text(item, what) if item is not None else f"${{{name}}}" for name, item in mapping(value, what).items()
    }


def _port(value: Any, fill: Callable[[str], str]) -> str:
    if isinstance(value, dict):
        return f"{text(value.get('published'), 'published')}:{text(value.get('target'), 'target')}"
    return fill(text(value, "ports"))


def _volume(value: Any, fill: Callable[[str], str]) -> str:
    if isinstance(value, dict):
        end = ":ro" if value.get("read_only") is True else ""
        return fill(f"{text(value.get('source'), 'source')}:{text(value.get('target'), 'target')}{end}")
    return fill(text(value, "volumes"))


def _options(service: dict[str, Any], found: Foreign, fill: Callable[[str], str], report: Report) -> None:
    for key, value in service.items():
        if key in SAME:
            found.options[SAME[key]] = value if isinstance(value, bool) else fill(text(value, key))
        elif key in LISTS:
            found.options[LISTS[key]] = tuple(fill(word) for word in _listed(value, key))
        elif key == "ulimits":
            found.options[key] = {name: _limit(value) for name, value in mapping(value, key).items()}
        elif key == "labels":
            found.options[key] = _pairs(value, key)
        elif key in DROPPED:
            report.add("dropped", key, DROPPED[key])
        elif key == "deploy":
            _deploy(mapping(value, key), report)
        elif key not in READ:
            report.add("dropped", str(key), "it has no place in a recipe")
    if "oom_score_adj" in found.options:
        found.options["oom_score_adj"] = _integer(str(found.options["oom_score_adj"]), "oom_score_adj")


def _listed(value: Any, what: str) -> list[str]:
    """Return the items of a list, of one word, or of `extra_hosts` as a mapping."""
    if isinstance(value, dict):
        return [f"{name}:{text(item, what)}" for name, item in value.items()]
    return texts(value if isinstance(value, list) else [value], what)


def _integer(value: str, what: str) -> int:
    if re.fullmatch(r"-?[0-9]{1,9}", value) is None:
        raise Refused(f"`{what}` must be a whole number, got '{one_line(value, at_most=40)}'.")
    return int(value)


def _deploy(deploy: dict[str, Any], report: Report) -> None:
    resources = mapping(deploy.pop("resources", None), "deploy.resources")
    reserved = mapping(resources.pop("reservations", None), "deploy.resources.reservations")
    if reserved.pop("devices", None):
        report.add("translated", "deploy: devices", "gpus: all, a recipe's default")
    for key in (*reserved, *resources, *deploy):
        report.add("dropped", f"deploy: {key}", "it has no place in a recipe")


def _limit(value: Any) -> str:
    if isinstance(value, dict):
        return f"{text(value.get('soft'), 'soft')}:{text(value.get('hard'), 'hard')}"
    return text(value, "ulimits")
