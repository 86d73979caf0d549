"""One table of what a container is made of: it drives create, compare and diff.

Each option knows how the spec says it, how the engine says it back, and why a difference matters. Only what the spec asks
for is compared, after merging what the image contributes (environment, labels, entrypoint, command).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sparkwright.engine import key_file
from sparkwright.host.images.image_names import digests_of
from sparkwright.modules.base import Change
from sparkwright.plan.container import KEPT, ContainerSpec
from sparkwright.trust import hidden

Inspect = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Option:
    """wanted: from the spec. found: from the container's and its image's inspect. why: what a difference means."""

    field: str
    wanted: Callable[[ContainerSpec], Any]
    found: Callable[[Inspect, Inspect], Any]
    why: str = ""


def size_bytes(text: str) -> int:
    """Docker's spelling of a size ("64gb", "512m", "1024") in bytes; its units are binary."""
    number = text.strip().lower().rstrip("b")
    factor = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}.get(number[-1:], 1)
    return int(float(number.rstrip("kmgt")) * factor)


def port_bindings(ports: tuple[str, ...]) -> dict[str, list[dict[str, str]]]:
    """ "127.0.0.1:8000:8000/tcp" as the engine keeps it."""
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in ports:
        *address, host, inside = port.rsplit(":", 2) if port.count(":") > 1 else ["", *port.split(":")]
        key = inside if "/" in inside else f"{inside}/tcp"
        bindings.setdefault(key, []).append({"HostIp": address[0] if address else "", "HostPort": host})
    return bindings


def gpu_request(gpus: str) -> list[dict[str, Any]]:
    """ "all" or "device=0,1" as the engine's device requests; "" is none."""
    if not gpus:
        return []
    if gpus.startswith("device="):
        return [{"Driver": "", "Count": 0, "DeviceIDs": gpus[7:].split(","), "Capabilities": [["gpu"]], "Options": {}}]
    count = -1 if gpus == "all" else int(gpus)
    return [{"Driver": "", "Count": count, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}]


def ulimits(limits: Mapping[str, str]) -> list[dict[str, Any]]:
    """ "memlock": "-1" or "soft:hard" as the engine keeps it."""
    rows = []
    for name, text in sorted(limits.items()):
        soft, _, hard = text.partition(":")
        rows.append({"Name": name, "Soft": int(soft), "Hard": int(hard or soft)})
    return rows


def _env(pairs: list[str] | None) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in pairs or ())


def _own_env(container: Inspect, image: Inspect) -> dict[str, str]:
    inherited = _env((image.get("Config") or {}).get("Env"))
    return {k: v for k, v in _env(container["Config"].get("Env")).items() if inherited.get(k) != v}


def _own_labels(container: Inspect, image: Inspect) -> dict[str, str]:
    inherited = (image.get("Config") or {}).get("Labels") or {}
    own = container["Config"].get("Labels") or {}
    return {k: v for k, v in own.items() if inherited.get(k) != v and not k.startswith("sparkwright.")}


def _entrypoint(container: Inspect, image: Inspect) -> list[str] | None:
    found = container["Config"].get("Entrypoint")
    inherited = (image.get("Config") or {}).get("Entrypoint")
    return None if found == inherited else found


def _shm(container: Inspect, image: Inspect) -> int:
    return int(container["HostConfig"].get("ShmSize") or 0)


def _gpus(container: Inspect, image: Inspect) -> list[dict[str, Any]]:
    rows = container["HostConfig"].get("DeviceRequests") or []
    return [{**row, "Driver": "", "Options": {}, "DeviceIDs": row.get("DeviceIDs") or None} for row in rows]


def _ports(container: Inspect, image: Inspect) -> Any:
    found = container["HostConfig"].get("PortBindings") or {}
    return {k: [{"HostIp": b.get("HostIp", ""), "HostPort": b["HostPort"]} for b in v or []] for k, v in found.items()}


def _host_config(key: str, default: Any = "") -> Callable[[Inspect, Inspect], Any]:
    return lambda container, image: container["HostConfig"].get(key) or default


#: every option but image, command and restart policy, which have rules of their own in container.py
OPTIONS: tuple[Option, ...] = (
    Option("entrypoint", lambda s: list(s.entrypoint[:1]) if s.entrypoint else None, _entrypoint),
    Option("gpus", lambda s: gpu_request(s.gpus), _gpus, "without it the engine finds no GPU"),
    Option(
        "ipc", lambda s: s.ipc, lambda c, i: c["HostConfig"].get("IpcMode") or "", "workers share memory through it"
    ),
    Option("shm-size", lambda s: size_bytes(s.shm_size) if s.shm_size else None, _shm),
    Option("ports", lambda s: port_bindings(s.ports), _ports, "where clients find the server"),
    Option("volumes", lambda s: sorted(s.volumes), lambda c, i: sorted(c["HostConfig"].get("Binds") or [])),
    Option("env", lambda s: dict(s.env), _own_env),
    Option("labels", lambda s: dict(s.labels), _own_labels),
    Option(
        "ulimits",
        lambda s: ulimits(s.ulimits),
        lambda c, i: sorted(c["HostConfig"].get("Ulimits") or [], key=lambda row: str(row["Name"])),
    ),
)


def differences(spec: ContainerSpec, container: Inspect, image: Inspect) -> list[Change]:
    """Every option that is not as the spec asks for, with the command's flags one by one. Pure.

    A server that somebody started otherwise may have secrets in its command and its environment: they are not shown.
    """
    changes = _image(spec, image)
    for option in OPTIONS:
        wanted, found = option.wanted(spec), option.found(container, image)
        if (wanted is not None and wanted != found) or (option.field == "entrypoint" and wanted != found):
            changes.append(Change(option.field, found, wanted, option.why))
    changes += _command(spec, list(container["Config"].get("Cmd") or [])) + _server_key(spec, container)
    return [
        replace(one, before=hidden.value(one.field, one.before), after=hidden.value(one.field, one.after))
        for one in changes
    ]


def key_fingerprint(container: Inspect) -> str:
    """The fingerprint of the key that a container was made with, from the name of the file it mounts; empty without one."""
    mounts = (container.get("HostConfig") or {}).get("Mounts") or ()
    source = next((str(one.get("Source")) for one in mounts if one.get("Target") == key_file.MOUNT), "")
    return source.rpartition("/")[2].removesuffix(".yaml").rpartition("-")[2]


def create_arguments(spec: ContainerSpec) -> dict[str, Any]:
    """The engine's own words for `POST /containers/create`; the restart policy is `no` until it is earned."""
    entrypoint = list(spec.entrypoint) if spec.entrypoint else None
    host: dict[str, Any] = {
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        "Binds": list(spec.volumes),
        "PortBindings": port_bindings(spec.ports),
        "DeviceRequests": gpu_request(spec.gpus),
        "IpcMode": spec.ipc,
        "Ulimits": ulimits(spec.ulimits),
    }
    if spec.shm_size:
        host["ShmSize"] = size_bytes(spec.shm_size)
    body: dict[str, Any] = {
        "Image": spec.image,
        "Cmd": [*(entrypoint[1:] if entrypoint else []), *spec.command],
        "Env": [f"{name}={value}" for name, value in sorted(spec.env.items())],
        "Labels": dict(spec.labels),
        "ExposedPorts": {key: {} for key in port_bindings(spec.ports)},
        "HostConfig": host,
    }
    return {**body, "Entrypoint": entrypoint[:1]} if entrypoint else body


def _image(spec: ContainerSpec, image: Inspect) -> list[Change]:
    """By registry digest, never by image Id: the Id differs between image stores for the same content."""
    wanted = spec.image.partition("@")[2]
    digests = digests_of(image)
    if not wanted or wanted in digests:
        return []
    before = digests[0] if digests else image.get("Id", "unknown")
    return [Change("image", before, wanted, "the lock pins another digest")]


def _command(spec: ContainerSpec, found: list[str]) -> list[Change]:
    wanted = [*(spec.entrypoint[1:] if spec.entrypoint else ()), *spec.command]
    if wanted == found:
        return []
    before, after = _flags(found), _flags(wanted)
    names = [*after, *(name for name in before if name not in after)]
    changes = [Change(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]
    return changes or [Change("command", " ".join(found), " ".join(wanted), "the same flags in another order")]


def _server_key(spec: ContainerSpec, container: Inspect) -> list[Change]:
    """Whether the key is the one that is wanted. A change says no more of it: neither the key nor its fingerprint."""
    found, wanted = key_fingerprint(container), spec.server_key.removeprefix(KEPT)
    if found == wanted and bool(found) == bool(spec.server_key):
        return []
    after = ("changed" if found else "set") if spec.server_key else None
    return [Change("server_key", "set" if found else None, after, "clients need the new one")]


def _flags(words: list[str]) -> dict[str, str]:
    """Flags with their values; a bare switch has "" as its value."""
    found: dict[str, str] = {}
    name = "command"
    for word in words:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            found[name] = value
        else:
            found[name] = f"{found.get(name, '')} {word}".strip()
    return found
