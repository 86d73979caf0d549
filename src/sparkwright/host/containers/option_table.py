"""The table of container options, which drives create, compare and diff.

Each row is built from the option's field in protocol/container.py; _RULES overrides rows whose comparison depends on other
values as well.

A value equal to the image's is not a difference. An option that the spec leaves out must have Docker's or the image's default,
but is not compared if Docker's configuration determines the default (docs/decisions/0016). Lists are compared as sets if their
order has no meaning.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.engines.compile_caches import find_cache_variables
from sparkwright.engines.engine import ENGINE_LABEL
from sparkwright.host.containers import inspection
from sparkwright.protocol.container import DOCKER_OPTIONS, OWN_LABEL_PREFIX, ContainerSpec
from sparkwright.protocol.docker_option import DockerOption
from sparkwright.trust import container_option_rules, process_option_rules, security_option_rules

Inspect = Mapping[str, Any]
#: returns an option's value from the spec and the inspect data of the container and of its image (empty if the image is gone)
OptionReader = Callable[[ContainerSpec, Inspect, Inspect], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """Rules to create, compare and explain an option of a container."""

    field: str
    #: the spec's value; None to skip the comparison
    read_expected: OptionReader
    #: the container's value, in the same notation
    read_actual: OptionReader
    #: the meaning of a difference
    why: str = ""
    #: key of the option in Docker's HostConfig or Config
    key: str = ""
    #: "HostConfig" or "Config"
    section: str = "HostConfig"
    #: the value to create with; None to leave it out
    build_requested: Callable[[ContainerSpec], Any] = lambda spec: None
    #: True if Docker's configuration determines the default, so that the option is not compared unless the spec sets it
    has_daemon_default: bool = False


def _build_option(name: str, option: DockerOption) -> Option:
    """Build an option's row of the table from its field."""
    read, key, in_image = operator.attrgetter(name), option.key, option.section == "Config"

    def requested_value(spec: ContainerSpec) -> Any:
        value = read(spec)
        return (option.to_api(value) or None) if value else None

    def expected_value(spec: ContainerSpec, container: Inspect, image: Inspect) -> Any:
        value = requested_value(spec)
        if value is None and (option.ignored_if_empty or (in_image and not image)):
            return None
        if value is None and in_image:
            value = (image.get("Config") or {}).get(key)
        return option.normalize(value)

    def actual_value(spec: ContainerSpec, container: Inspect, image: Inspect) -> Any:
        return option.normalize(container[option.section].get(key))

    field = name.replace("_", "-")
    return Option(
        field,
        expected_value,
        actual_value,
        option.effect,
        key,
        option.section,
        requested_value,
        option.ignored_if_empty,
    )


# -- options with defaults from Docker or the image -----------------------------------------------------------------


def _drop_inherited(
    actual: Mapping[str, str], expected: Mapping[str, str], image: Inspect, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the container's variables or labels that the spec sets or that differ from the image's.

    Without the image, only those that the spec sets are returned.
    """
    return {name: text for name, text in actual.items() if name in expected or (image and inherited.get(name) != text)}


def _actual_env(spec: ContainerSpec, container: Inspect, image: Inspect) -> dict[str, str]:
    inherited = inspection.parse_env((image.get("Config") or {}).get("Env"))
    variables = inspection.parse_env(container["Config"].get("Env"))
    cache_variables = find_cache_variables(variables) - spec.env.keys()
    other_variables = {name: value for name, value in variables.items() if name not in cache_variables}
    return _drop_inherited(other_variables, spec.env, image, inherited)


def _actual_labels(spec: ContainerSpec, container: Inspect, image: Inspect) -> dict[str, str]:
    inherited = (image.get("Config") or {}).get("Labels") or {}
    labels = _drop_inherited(container["Config"].get("Labels") or {}, spec.labels, image, inherited)
    return _comparable_labels(labels)


def _comparable_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels to compare: those set by the recipe, and the label with the engine's name."""
    return {
        name: text for name, text in labels.items() if not name.startswith(OWN_LABEL_PREFIX) or name == ENGINE_LABEL
    }


def read_networks(container: Inspect) -> tuple[str, list[str]]:
    """Return the network that a container was created in, and the other ones that it has joined, with their aliases."""
    mode = str(container["HostConfig"].get("NetworkMode") or "default")
    first_network = process_option_rules.BRIDGE_NETWORK if mode == "default" else mode
    own_names = {str(container.get("Id", ""))[:12], container["Config"].get("Hostname")}
    rows = (container.get("NetworkSettings") or {}).get("Networks") or {}
    aliases = {name: {*((row or {}).get("Aliases") or ())} - own_names for name, row in rows.items()}
    joined_networks = sorted(
        process_option_rules.format_network(name, aliases[name]) for name in aliases if name != first_network
    )
    return process_option_rules.format_network(first_network, aliases.get(first_network, ())), joined_networks


def _normalize_network(network: str) -> str:
    return process_option_rules.format_network(*process_option_rules.parse_network(network))


def has_default_hostname(container: Inspect) -> bool:
    """Return True if Docker chose the hostname: the container's id or, on the host's network, the host's name."""
    is_id = container["Config"].get("Hostname") in (None, "", str(container.get("Id", ""))[:12])
    return is_id or container["HostConfig"].get("NetworkMode") == process_option_rules.HOST_NETWORK


def _expected_hostname(spec: ContainerSpec, container: Inspect, image: Inspect) -> Any:
    return spec.hostname or (None if has_default_hostname(container) else "")


def gets_label_disable(container: Inspect) -> bool:
    """Return True if Docker adds label=disable: the container is privileged, or shares the host's pid or ipc namespace."""
    host_config = container["HostConfig"]
    return bool(host_config.get("Privileged")) or "host" in (host_config.get("IpcMode"), host_config.get("PidMode"))


def _actual_security_opts(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[str]:
    """Return the container's security options, without label=disable if Docker added it."""
    options = security_option_rules.normalize_security_opts(container["HostConfig"].get("SecurityOpt"))
    added_options = {"label=disable"} if gets_label_disable(container) else set()
    added_options -= {*security_option_rules.normalize_security_opts(spec.security_opt)}
    return [option for option in options if option not in added_options]


def _expected_init(spec: ContainerSpec, container: Inspect, image: Inspect) -> bool | None:
    """Return the expected `init`. If the spec leaves it out, Docker's configuration decides, and the inspect data lacks it."""
    return False if spec.init is None and container["HostConfig"].get("Init") else spec.init


def _expected_swap(spec: ContainerSpec, container: Inspect, image: Inspect) -> int | None:
    """Return the expected swap limit. Docker's default is twice the memory, or no limit if the kernel does not support it."""
    if spec.memory_swap:
        return process_option_rules.parse_swap(spec.memory_swap)
    doubled_memory_bytes = 2 * int(container["HostConfig"].get("Memory") or 0)
    return None if _actual_swap(spec, container, image) in (0, -1, doubled_memory_bytes) else doubled_memory_bytes


def _actual_swap(spec: ContainerSpec, container: Inspect, image: Inspect) -> int:
    return int(container["HostConfig"].get("MemorySwap") or 0)


def _expected_health(spec: ContainerSpec, container: Inspect, image: Inspect) -> dict[str, Any] | None:
    """Return the spec's health check merged with the image's, field by field, as Docker does."""
    expected = process_option_rules.normalize_health_config(process_option_rules.health_config(spec.healthcheck))
    if not image:
        return expected or None
    inherited = process_option_rules.normalize_health_config((image.get("Config") or {}).get("Healthcheck"))
    return process_option_rules.normalize_health_config({**inherited, **expected})


def _actual_health(spec: ContainerSpec, container: Inspect, image: Inspect) -> dict[str, Any]:
    health = process_option_rules.normalize_health_config(container["Config"].get("Healthcheck"))
    expected = process_option_rules.health_config(spec.healthcheck)
    return health if image else {name: value for name, value in health.items() if name in expected}


def _actual_volumes(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[str]:
    """Return the container's volumes. For an adopted container, a writable mount counts as the spec's read-only one.

    A foreign container is not stopped merely because a mount is writable: it gets the read-only mount when it is replaced for
    another reason.
    """
    volumes = container_option_rules.normalize_binds(container["HostConfig"].get("Binds"))
    if inspection.is_ours(container):
        return volumes
    expected = container_option_rules.normalize_binds(list(spec.volumes))
    return sorted(f"{bind}:ro" if f"{bind}:ro" in expected else bind for bind in volumes)


def log_config(container: Inspect) -> Mapping[str, Any]:
    return container["HostConfig"].get("LogConfig") or {}


def _actual_log_options(spec: ContainerSpec, container: Inspect, image: Inspect) -> dict[str, Any]:
    """Return the container's log options that the spec sets; Docker adds others."""
    options = log_config(container).get("Config") or {}
    return {name: value for name, value in options.items() if name in spec.log_options}


def _requested_log_config(spec: ContainerSpec) -> dict[str, Any] | None:
    log_config = {"Type": spec.log_driver, "Config": dict(spec.log_options)}
    return log_config if any(log_config.values()) else None


#: fields of `Option` for options whose comparison depends on other values as well
_RULES: dict[str, dict[str, Any]] = {
    "volumes": {"read_actual": _actual_volumes},
    "env": {"read_expected": lambda spec, container, image: dict(spec.env), "read_actual": _actual_env},
    "labels": {
        "read_expected": lambda spec, container, image: _comparable_labels(spec.labels),
        "read_actual": _actual_labels,
    },
    "network": {
        "read_expected": lambda spec, container, image: _normalize_network(
            spec.network or process_option_rules.BRIDGE_NETWORK
        ),
        "read_actual": lambda spec, container, image: read_networks(container)[0],
    },
    "networks": {
        "read_expected": lambda spec, container, image: sorted(map(_normalize_network, spec.networks)),
        "read_actual": lambda spec, container, image: read_networks(container)[1],
    },
    "hostname": {"read_expected": _expected_hostname},
    "security_opt": {"read_actual": _actual_security_opts},
    "init": {"read_expected": _expected_init, "build_requested": lambda spec: spec.init},
    "memory_swap": {"read_expected": _expected_swap, "read_actual": _actual_swap},
    "healthcheck": {"read_expected": _expected_health, "read_actual": _actual_health},
    "log_driver": {
        "read_expected": lambda spec, container, image: spec.log_driver or None,
        "read_actual": lambda spec, container, image: log_config(container).get("Type"),
        "build_requested": _requested_log_config,
        "has_daemon_default": True,
    },
    "log_options": {
        "read_expected": lambda spec, container, image: dict(spec.log_options) or None,
        "read_actual": _actual_log_options,
        "has_daemon_default": True,
    },
}

#: all options except image, entrypoint, command, restart policy, key and files, which container_options.py compares
OPTIONS: tuple[Option, ...] = tuple(
    replace(_build_option(name, option), **_RULES.get(name, {})) for name, option in DOCKER_OPTIONS.items()
)
