"""Reads the service that serves the model from a Compose file. Source: the Compose specification (services, interpolation)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.importing import command, docker_command
from sparkwright.project.importing.docker_command import split_command
from sparkwright.project.importing.foreign_recipe import (
    COMMAND_SHAPE,
    SCALAR_TYPES,
    VARIABLES_SHAPE,
    ForeignRecipe,
    ImportReport,
    as_mapping,
    as_text,
    as_texts,
    partial_mapping,
    scalar,
    shape_by_type,
    word_list,
)
from sparkwright.trust.secret_names import is_secret_name
from sparkwright.visible import one_line

KIND = "a compose file"
EXTENDS_KEY = "extends"
_VARIABLE_PATTERN = re.compile(r"\$\$|\$\{(\w{1,100})(?:(:?[-?+])([^}]{0,500}))?\}|\$(\w{1,100})")
#: equivalent option of `docker run` for each key of a service
DOCKER_OPTION_NAMES = {
    "environment": "env", "ports": "publish", "volumes": "volume", "network_mode": "network", "container_name": "name",
    "ipc": "ipc", "shm_size": "shm-size", "user": "user", "working_dir": "workdir", "hostname": "hostname", "pid": "pid",
    "init": "init", "privileged": "privileged", "stop_signal": "stop-signal", "restart": "restart", "mem_limit": "memory",
    "memswap_limit": "memory-swap", "oom_score_adj": "oom-score-adj", "cpuset": "cpuset-cpus", "cap_add": "cap-add",
    "cap_drop": "cap-drop", "security_opt": "security-opt", "devices": "device", "extra_hosts": "add-host", "dns": "dns",
    "tmpfs": "tmpfs", "group_add": "group-add", "ulimits": "ulimit", "labels": "label", "cpus": "cpus", "sysctls": "sysctl",
}  # fmt: skip
#: keys whose value is a mapping or a list of NAME=VALUE
PAIR_KEYS = ("environment", "labels", "sysctls")
LIST_KEYS = ("cap_add", "cap_drop", "security_opt", "devices", "dns", "tmpfs", "group_add")
READ_KEYS = {"image", "command", "entrypoint", "deploy"}
_PORT_SHAPE = partial_mapping(published=scalar, target=scalar)
_VOLUME_SHAPE = partial_mapping(source=scalar, target=scalar)
_LIMIT_SHAPE = shape_by_type(
    "a number or a mapping", (SCALAR_TYPES, scalar), (dict, partial_mapping(soft=scalar, hard=scalar))
)
_PAIRS_SHAPE = shape_by_type("a mapping or a list", (dict, VARIABLES_SHAPE), (list, word_list))
_LIST_SHAPE = shape_by_type("a list", (SCALAR_TYPES, scalar), (list, word_list))
_DEPLOY_SHAPE = partial_mapping(resources=partial_mapping(reservations=partial_mapping(devices=[object]), limits={}))
_SERVICE_SHAPE = {
    **partial_mapping(
        **{key: _LIST_SHAPE if key in LIST_KEYS else scalar for key in DOCKER_OPTION_NAMES}, image=scalar
    ),
    **partial_mapping(
        command=COMMAND_SHAPE, entrypoint=COMMAND_SHAPE, **dict.fromkeys((*PAIR_KEYS, "extra_hosts"), _PAIRS_SHAPE)
    ),
    **partial_mapping(ports=[shape_by_type("a port or a mapping", (SCALAR_TYPES, scalar), (dict, _PORT_SHAPE))]),
    **partial_mapping(volumes=[shape_by_type("a string or a mapping", (str, scalar), (dict, _VOLUME_SHAPE))]),
    **partial_mapping(ulimits={str: _LIMIT_SHAPE}, deploy=_DEPLOY_SHAPE),
}
#: shape of a file, checked before it is read
SHAPE = {"services": {str: (None, _SERVICE_SHAPE)}}
#: keys that an import drops, each with the reason
DROPPED_KEYS = {
    "healthcheck": "sparkwright itself checks that the server generates text (`health.install`)",
    "depends_on": "a recipe starts only one container",
    "env_file": "the variables in it were not imported: add them under container.env",
    "networks": "Docker's default bridge is used, and the port published",
    "runtime": "`gpus` adds the GPU",
    "logging": "Docker's default log driver is used; set `log_driver` and `log_options` for another",
    "build": "images are pulled, not built",
    "platform": "a Spark is always linux/arm64",
}


def matches(data: dict[str, Any]) -> bool:
    """Return True if a YAML file has this format."""
    return isinstance(data.get("services"), dict)


def convert(data: dict[str, Any], report: ImportReport) -> ForeignRecipe:
    """Return the recipe for the service. Raises Refused if no service can be imported."""
    name, service = _select_service(as_mapping(data["services"]), report)
    fill_variables = _build_interpolator(report)
    image = fill_variables(as_text(service.get("image")))
    if not image and "build" in service:
        question = "the image is built from a folder: an image to pull instead, as REPOSITORY:TAG"
        image = report.ask("image", question) or "owner/image:tag"
    entrypoint = _command_words(service.get("entrypoint"), fill_variables)
    command_words = [*entrypoint[1:], *_command_words(service.get("command"), fill_variables)]
    options = {"entrypoint": entrypoint[:1]}
    for key, value in service.items():
        if key in DOCKER_OPTION_NAMES:
            options[DOCKER_OPTION_NAMES[key]] = [fill_variables(word) for word in _option_values(key, value)]
        elif key == "deploy":
            _report_deploy(as_mapping(value), report)
        elif key not in READ_KEYS:
            report.add("dropped", str(key), DROPPED_KEYS.get(key, "recipes have no such setting"))
    arguments = docker_command.build_arguments(image, command_words, **options)
    return docker_command.parse_arguments(arguments, ForeignRecipe(KIND, name), report)


def _select_service(services: dict[str, Any], report: ImportReport) -> tuple[str, dict[str, Any]]:
    if not services:
        raise Refused("`services` is empty.")
    services_by_name = {name: as_mapping(service) for name, service in services.items()}
    names = [name for name, service in services_by_name.items() if service.keys() & {"image", "build", EXTENDS_KEY}]
    if not names:
        raise Refused("no service of the compose file has an image.")
    candidates = names if len(names) == 1 else [name for name in names if _starts_engine(services_by_name[name])]
    answer = report.find_answer("service") or (candidates[0] if len(candidates) == 1 else "")
    if answer not in names:
        answer = report.ask("service", f"which service serves the model: {', '.join(names)}", names)
    for other in names:
        if answer and other != answer:
            report.add("dropped", f"service {other}", "a recipe starts only one container")
    name = answer or names[0]
    if EXTENDS_KEY in services_by_name[name]:
        fix = "Import the output of `docker compose config`, in which it is resolved."
        raise Refused(f"the service {one_line(name, max_chars=60)} extends another one (`{EXTENDS_KEY}`).", fix=fix)
    return name, services_by_name[name]


def _starts_engine(service: dict[str, Any]) -> bool:
    """Return True if the image or the first words of the command name an engine."""
    words: list[str] = []
    for value in (service.get("entrypoint"), service.get("command")):
        for text in value if isinstance(value, list) else [value]:
            words += str(text or "").split()
    image = str(service.get("image") or "")
    return bool(command.find_engine_name([*words[: command.MAX_PROGRAM_WORDS], image]))


def _build_interpolator(report: ImportReport) -> Callable[[str], str]:
    """Return a function that replaces variables in a string with their defaults or the user's answers."""

    def interpolate(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        name, operator, default = match[1] or match[4], match[2] or "", match[3] or ""
        if is_secret_name(name):
            return default if operator.endswith("-") else match[0]  # never asked for or shown
        if operator.endswith("-"):
            report.add("note", f"${{{name}}}", f"replaced by its default, '{one_line(default, max_chars=60)}'")
            return default
        if name in ("HOME", "PWD"):
            return match[0]
        return report.ask(f"variable.{name}", f"the file uses the environment variable {name}: its value") or match[0]

    return lambda text: _VARIABLE_PATTERN.sub(interpolate, text)


def _command_words(value: Any, fill_variables: Callable[[str], str]) -> list[str]:
    if isinstance(value, list):
        return [fill_variables(word) for word in as_texts(value)]
    return split_command(fill_variables(as_text(value))) if value else []


def _option_values(key: str, value: Any) -> list[str]:
    """Return the values of the `docker run` option that is equivalent to a key of a service."""
    if value is None:
        return []
    if key in PAIR_KEYS:
        return _format_pairs(value, key)
    if isinstance(value, dict):
        separator = "=" if key == "ulimits" else ":"
        return [f"{name}{separator}{_join_parts(item, 'soft', 'hard')}" for name, item in value.items()]
    names = {"ports": ("published", "target"), "volumes": ("source", "target")}.get(key, ())
    return [_join_parts(item, *names) for item in (value if isinstance(value, list) else [value])]


def _join_parts(item: Any, *names: str) -> str:
    """Return a value in Docker's notation with colons. names: keys of its parts, if it is a mapping."""
    if not isinstance(item, dict):
        return as_text(item)
    return ":".join([*(as_text(item.get(name)) for name in names), *(["ro"] if item.get("read_only") is True else [])])


def _format_pairs(value: Any, key: str) -> list[str]:
    """Return NAME=VALUE for each item. An environment variable without a value becomes NAME=${NAME}."""
    items = value.items() if isinstance(value, dict) else [item.partition("=")[::2] for item in as_texts(value)]
    bare_names = {name for name, item in items if item is None} if isinstance(value, dict) else {*as_texts(value)}
    reference = "${{{}}}" if key == "environment" else ""
    return [f"{name}={reference.format(name) if name in bare_names else as_text(item)}" for name, item in items]


def _report_deploy(deploy: dict[str, Any], report: ImportReport) -> None:
    resources = as_mapping(deploy.pop("resources", None))
    reservations = as_mapping(resources.pop("reservations", None))
    if reservations.pop("devices", None):
        report.add("translated", "deploy: devices", "gpus: all, the default in recipes")
    for key in (*reservations, *resources, *deploy):
        report.add("dropped", f"deploy: {key}", "recipes have no such setting")
