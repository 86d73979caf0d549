"""The table of container options, which drives create, compare and diff.

A row comes from the option's field in protocol/container.py; _RULES has what a comparison needs beyond the option's own value.

Each option knows the spec's value, the engine's value, and the meaning of a difference. The spec is compared on top of the image:
a value equal to the image's is no difference. Without a value in the spec, the engine's or the image's default is wanted; options
that only the engine's configuration decides are not compared then (docs/decisions/0016). Lists without a meaningful order are
compared regardless of it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.engines.caches import set_by_us
from sparkwright.engines.engine import LABEL
from sparkwright.host.containers import inspection as engine
from sparkwright.protocol.container import DOCKER_OPTIONS, OWN_LABELS, ContainerSpec
from sparkwright.protocol.docker_option import DockerOption
from sparkwright.trust import container_words, process_words, security_words

Inspect = Mapping[str, Any]
#: returns an option's value from the spec, the container's inspect, and its image's inspect (empty if the image is gone)
Reader = Callable[[ContainerSpec, Inspect, Inspect], Any]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a container: how to create it, compare it and explain a difference."""

    field: str
    #: the spec's value; None if it is not compared
    wanted: Reader
    #: the container's value, in the same spelling
    found: Reader
    #: the meaning of a difference
    why: str = ""
    #: its name in the engine's HostConfig or Config
    key: str = ""
    #: "HostConfig" or "Config"
    section: str = "HostConfig"
    #: the value to create with; None to leave it out
    asked: Callable[[ContainerSpec], Any] = lambda spec: None
    #: not compared if the spec leaves it out: the engine's configuration decides
    open: bool = False


def _plain(name: str, option: DockerOption) -> Option:
    """Return the row of an option as its field describes it."""
    read, key, in_image = operator.attrgetter(name), option.key, option.section == "Config"

    def asked(spec: ContainerSpec) -> Any:
        value = read(spec)
        return (option.kept(value) or None) if value else None

    def wanted(spec: ContainerSpec, container: Inspect, image: Inspect) -> Any:
        value = asked(spec)
        if value is None and (option.open or (in_image and not image)):
            return None
        if value is None and in_image:
            value = (image.get("Config") or {}).get(key)
        return option.alike(value)

    def found(spec: ContainerSpec, container: Inspect, image: Inspect) -> Any:
        return option.alike(container[option.section].get(key))

    return Option(name.replace("_", "-"), wanted, found, option.why, key, option.section, asked, option.open)


# -- options with defaults of the engine or the image -------------------------------------------------------------------


def _own(
    found: Mapping[str, str], wanted: Mapping[str, str], image: Inspect, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the container's variables or labels that the spec sets, or that differ from its image's.

    If the image is gone, only those that the spec sets.
    """
    return {k: v for k, v in found.items() if k in wanted or (image and inherited.get(k) != v)}


def _own_env(spec: ContainerSpec, container: Inspect, image: Inspect) -> dict[str, str]:
    inherited = engine.env((image.get("Config") or {}).get("Env"))
    found = engine.env(container["Config"].get("Env"))
    ours = set_by_us(found) - spec.env.keys()
    return _own({name: value for name, value in found.items() if name not in ours}, spec.env, image, inherited)


def _own_labels(spec: ContainerSpec, container: Inspect, image: Inspect) -> dict[str, str]:
    inherited = (image.get("Config") or {}).get("Labels") or {}
    found = _own(container["Config"].get("Labels") or {}, spec.labels, image, inherited)
    return _compared(found)


def _compared(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels to compare: a recipe's, and the one that names the engine."""
    return {name: text for name, text in labels.items() if not name.startswith(OWN_LABELS) or name == LABEL}


def _networks(container: Inspect) -> tuple[str, list[str]]:
    """Return the network that a container was created in, and further ones that it joined, with their aliases."""
    mode = str(container["HostConfig"].get("NetworkMode") or "default")
    first = process_words.BRIDGE if mode == "default" else mode
    own = {str(container.get("Id", ""))[:12], container["Config"].get("Hostname")}
    rows = (container.get("NetworkSettings") or {}).get("Networks") or {}
    aliases = {name: {*((row or {}).get("Aliases") or ())} - own for name, row in rows.items()}
    joined = sorted(process_words.spelled(name, aliases[name]) for name in aliases if name != first)
    return process_words.spelled(first, aliases.get(first, ())), joined


def _spelled(network: str) -> str:
    return process_words.spelled(*process_words.parts(network))


def _hostname(spec: ContainerSpec, container: Inspect, image: Inspect) -> Any:
    """Return the wanted hostname; without one, the container's id, or the host's own name on the host's network."""
    found = container["Config"].get("Hostname")
    own = found in (None, "", str(container.get("Id", ""))[:12])
    shared = container["HostConfig"].get("NetworkMode") == process_words.HOST
    return spec.hostname or (None if own or shared else "")


def _security_opts(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[str]:
    """Return the container's security options, without the label=disable that the engine itself adds.

    It does so if the container is privileged or shares the host's pid or ipc namespace.
    """
    host = container["HostConfig"]
    found = security_words.security_opts(host.get("SecurityOpt"))
    shares = host.get("Privileged") or "host" in (host.get("IpcMode"), host.get("PidMode"))
    added = {"label=disable"} - {*security_words.security_opts(spec.security_opt)} if shares else set()
    return [item for item in found if item not in added]


def _init(spec: ContainerSpec, container: Inspect, image: Inspect) -> bool | None:
    """Return the wanted `init`; unset, the engine's configuration decides, and it stores no value."""
    return False if spec.init is None and container["HostConfig"].get("Init") else spec.init


def _memory_swap(spec: ContainerSpec, container: Inspect, image: Inspect) -> int | None:
    """Return the wanted swap limit; unset, the engine uses twice the memory, or no limit if the kernel does not support one."""
    if spec.memory_swap:
        return process_words.swap_bytes(spec.memory_swap)
    twice = 2 * int(container["HostConfig"].get("Memory") or 0)
    return None if _found_swap(spec, container, image) in (0, -1, twice) else twice


def _found_swap(spec: ContainerSpec, container: Inspect, image: Inspect) -> int:
    return int(container["HostConfig"].get("MemorySwap") or 0)


def _health(spec: ContainerSpec, container: Inspect, image: Inspect) -> dict[str, Any] | None:
    """Return the spec's health check merged with the image's, field by field, as the engine does."""
    expected = process_words.health_alike(process_words.health_config(spec.healthcheck))
    if not image:
        return expected or None
    inherited = process_words.health_alike((image.get("Config") or {}).get("Healthcheck"))
    return process_words.health_alike({**inherited, **expected})


def _found_health(spec: ContainerSpec, container: Inspect, image: Inspect) -> dict[str, Any]:
    found = process_words.health_alike(container["Config"].get("Healthcheck"))
    expected = process_words.health_config(spec.healthcheck)
    return found if image else {name: value for name, value in found.items() if name in expected}


def _found_volumes(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[str]:
    """Return the container's volumes, with those of an adopted container as read-only where the spec wants that.

    A container that someone else started is not stopped only because a mount is writable: it gets the read-only mount when it is
    replaced for another reason.
    """
    found = container_words.volumes_alike(container["HostConfig"].get("Binds"))
    if engine.is_ours(container):
        return found
    wanted = container_words.volumes_alike(list(spec.volumes))
    return sorted(f"{bind}:ro" if f"{bind}:ro" in wanted else bind for bind in found)


def _log(container: Inspect) -> Mapping[str, Any]:
    return container["HostConfig"].get("LogConfig") or {}


def _found_log_options(spec: ContainerSpec, container: Inspect, image: Inspect) -> dict[str, Any]:
    """Return the log options that the spec sets: the engine adds its own."""
    return {name: value for name, value in (_log(container).get("Config") or {}).items() if name in spec.log_options}


def _asked_log(spec: ContainerSpec) -> dict[str, Any] | None:
    log_config = {"Type": spec.log_driver, "Config": dict(spec.log_options)}
    return log_config if any(log_config.values()) else None


#: rules of options whose comparison depends on more than their own value
_RULES: dict[str, dict[str, Any]] = {
    "volumes": {"found": _found_volumes},
    "env": {"wanted": lambda spec, container, image: dict(spec.env), "found": _own_env},
    "labels": {"wanted": lambda spec, container, image: _compared(spec.labels), "found": _own_labels},
    "network": {
        "wanted": lambda spec, container, image: _spelled(spec.network or process_words.BRIDGE),
        "found": lambda spec, container, image: _networks(container)[0],
    },
    "networks": {
        "wanted": lambda spec, container, image: sorted(map(_spelled, spec.networks)),
        "found": lambda spec, container, image: _networks(container)[1],
    },
    "hostname": {"wanted": _hostname},
    "security_opt": {"found": _security_opts},
    "init": {"wanted": _init, "asked": lambda spec: spec.init},
    "memory_swap": {"wanted": _memory_swap, "found": _found_swap},
    "healthcheck": {"wanted": _health, "found": _found_health},
    "log_driver": {
        "wanted": lambda spec, container, image: spec.log_driver or None,
        "found": lambda spec, container, image: _log(container).get("Type"),
        "asked": _asked_log,
        "open": True,
    },
    "log_options": {
        "wanted": lambda spec, container, image: dict(spec.log_options) or None,
        "found": _found_log_options,
        "open": True,
    },
}

#: every option but image, entrypoint, command, restart policy, key and files: their rules are in container_options.py
OPTIONS: tuple[Option, ...] = tuple(
    replace(_plain(name, option), **_RULES.get(name, {})) for name, option in DOCKER_OPTIONS.items()
)
