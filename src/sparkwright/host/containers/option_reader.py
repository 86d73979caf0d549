"""Read an existing container's options in a recipe's spelling: the reverse of `container_options.build_create_body`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sparkwright.host.containers import option_table
from sparkwright.host.containers.option_table import Inspect
from sparkwright.protocol.container import DOCKER_OPTIONS, OWN_LABEL_PREFIX
from sparkwright.protocol.docker_option import DockerOption
from sparkwright.trust import process_option_rules
from sparkwright.units import GIB

#: options that ContainerSettings reports in fields of their own
SEPARATE_OPTIONS = frozenset(("env", "ports", "volumes", "network"))
#: Docker's defaults
DEFAULT_SHM_BYTES = 64 * 2**20
DEFAULT_LOG_DRIVER = "json-file"
#: values with which Docker's API reports an option that is not set
UNSET_VALUES: tuple[object, ...] = (None, "", 0, False, [], {})


def read_options(container: Inspect, image: Inspect) -> dict[str, Any]:
    """Return a container's options that differ from a plain `docker run`, in the recipe's spelling.

    `restart`, `gpus` and `ipc` are always included: a recipe's defaults differ from Docker's.

    Args:
        image: the inspect data of the container's image; an option equal to the image's is left out.
    """
    options: dict[str, Any] = {"restart": str((container["HostConfig"].get("RestartPolicy") or {}).get("Name") or "no")}
    for name, option in DOCKER_OPTIONS.items():
        if name in SEPARATE_OPTIONS:
            continue
        reader = READERS.get(name)
        value = reader(container, image) if reader else _read_value(option, container, image)
        if name in ("gpus", "ipc") or value not in UNSET_VALUES or (name == "init" and value is False):
            options[name] = value
    return options


def read_network(container: Inspect) -> str:
    """Return the container's network with its aliases, as in a recipe; empty if it is Docker's default bridge."""
    network = option_table.read_networks(container)[0]
    return "" if network == process_option_rules.BRIDGE_NETWORK else network


def _read_value(option: DockerOption, container: Inspect, image: Inspect) -> Any:
    """Return the value of an option that a recipe spells like Docker's API; None if it is the image's."""
    value = container[option.section].get(option.key)
    is_inherited = option.section == "Config" and value == (image.get("Config") or {}).get(option.key)
    return None if is_inherited else value


def _read_gpus(container: Inspect, image: Inspect) -> str:
    """Return the first device request as in `docker run --gpus`; empty if there is none."""
    requests: Sequence[Mapping[str, Any]] = container["HostConfig"].get("DeviceRequests") or ()
    if not requests:
        return ""
    if ids := requests[0].get("DeviceIDs"):
        return f"device={','.join(ids)}"
    count = requests[0].get("Count") or -1
    return "all" if count == -1 else str(count)


def _read_shm_size(container: Inspect, image: Inspect) -> str:
    size_bytes = container["HostConfig"].get("ShmSize") or 0
    return "" if size_bytes in (0, DEFAULT_SHM_BYTES) else _format_size(size_bytes)


def _read_ulimits(container: Inspect, image: Inspect) -> dict[str, str]:
    limits = {}
    for row in container["HostConfig"].get("Ulimits") or ():
        soft, hard = row["Soft"], row["Hard"]
        limits[row["Name"]] = str(soft) if soft == hard else f"{soft}:{hard}"
    return limits


def _read_labels(container: Inspect, image: Inspect) -> dict[str, str]:
    inherited = (image.get("Config") or {}).get("Labels") or {}
    labels = container["Config"].get("Labels") or {}
    return {
        name: text
        for name, text in labels.items()
        if inherited.get(name) != text and not name.startswith(OWN_LABEL_PREFIX)
    }


def _read_hostname(container: Inspect, image: Inspect) -> str:
    return "" if option_table.has_default_hostname(container) else str(container["Config"]["Hostname"])


def _read_security_opts(container: Inspect, image: Inspect) -> list[str]:
    """Return the security options without label=disable if Docker has added it."""
    options = list(container["HostConfig"].get("SecurityOpt") or ())
    return (
        [text for text in options if text != "label=disable"] if option_table.gets_label_disable(container) else options
    )


def _read_devices(container: Inspect, image: Inspect) -> list[str]:
    devices = []
    for row in container["HostConfig"].get("Devices") or ():
        source, target, access = row["PathOnHost"], row["PathInContainer"], row.get("CgroupPermissions") or "rwm"
        parts = [source, *([target] if target != source else []), *([access] if access != "rwm" else [])]
        devices.append(":".join(parts))
    return devices


def _read_healthcheck(container: Inspect, image: Inspect) -> dict[str, str]:
    """Return the health check's settings that differ from the image's. A command without a shell becomes a shell command."""
    health = process_option_rules.normalize_health_config(container["Config"].get("Healthcheck"))
    inherited = process_option_rules.normalize_health_config((image.get("Config") or {}).get("Healthcheck"))
    check: dict[str, str] = {}
    for name, key in process_option_rules.HEALTH_KEYS.items():
        value = health.get(key)
        if value is None or value == inherited.get(key):
            continue
        if name == "test":
            # Docker runs only the first word after CMD-SHELL; the list may contain none
            check[name] = "".join(value[1:2]) if value[0] == "CMD-SHELL" else shlex.join(value[value[0] == "CMD" :])
        else:
            check[name] = str(value) if name == "retries" else process_option_rules.format_duration(value)
    return check


def _read_tmpfs(container: Inspect, image: Inspect) -> list[str]:
    rows = container["HostConfig"].get("Tmpfs") or {}
    return [f"{folder}:{options}" if options else folder for folder, options in sorted(rows.items())]


def _read_memory(container: Inspect, image: Inspect) -> str:
    size_bytes = container["HostConfig"].get("Memory") or 0
    return _format_size(size_bytes) if size_bytes else ""


def _read_swap(container: Inspect, image: Inspect) -> str:
    """Return the limit of memory and swap; empty if it is Docker's default, twice the memory."""
    size_bytes, memory_bytes = (int(container["HostConfig"].get(key) or 0) for key in ("MemorySwap", "Memory"))
    if size_bytes in (0, 2 * memory_bytes):
        return ""
    return str(size_bytes) if size_bytes < 0 else _format_size(size_bytes)


def _read_cpus(container: Inspect, image: Inspect) -> float:
    return float(container["HostConfig"].get("NanoCpus") or 0) / 10**9


def _read_log_driver(container: Inspect, image: Inspect) -> str:
    log_config = option_table.log_config(container)
    driver = str(log_config.get("Type") or "")
    return "" if driver == DEFAULT_LOG_DRIVER and not log_config.get("Config") else driver


def _format_size(size_bytes: int) -> str:
    return f"{size_bytes // GIB}gb" if size_bytes % GIB == 0 else f"{size_bytes}b"


#: readers of the options that a recipe spells differently from Docker's API, or whose default depends on other values
READERS: Mapping[str, Callable[[Inspect, Inspect], Any]] = {
    "gpus": _read_gpus,
    "ipc": lambda container, image: str(container["HostConfig"].get("IpcMode") or ""),
    "shm_size": _read_shm_size,
    "ulimits": _read_ulimits,
    "labels": _read_labels,
    "networks": lambda container, image: option_table.read_networks(container)[1],
    "hostname": _read_hostname,
    "security_opt": _read_security_opts,
    "devices": _read_devices,
    "healthcheck": _read_healthcheck,
    "tmpfs": _read_tmpfs,
    "memory": _read_memory,
    "memory_swap": _read_swap,
    "cpus": _read_cpus,
    "log_driver": _read_log_driver,
    "log_options": lambda container, image: dict(option_table.log_config(container).get("Config") or {}),
}
