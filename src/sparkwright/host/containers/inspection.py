"""The Docker Engine's inspect of a container or an image, validated, and its spelling of a spec's values in one normal form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparkwright.protocol.container import OWN_LABELS
from sparkwright.trust.shapes import checked, optional

_CONFIG = {
    "Env": optional([str]),
    "Labels": optional({str: str}),
    "Entrypoint": optional([str]),
    "Cmd": optional([str]),
    "Image": optional(str),
    **dict.fromkeys(("User", "WorkingDir", "StopSignal", "Hostname"), optional(str)),
    "Healthcheck": optional({"Test": optional([str])}),
}
_REQUEST = {"Count": optional(int), "DeviceIDs": optional([str]), "Capabilities": optional([[str]])}
_LISTS = ("CapAdd", "CapDrop", "SecurityOpt", "GroupAdd", "ExtraHosts", "Dns")
_HOST = {
    "RestartPolicy": {"Name": str},
    "Binds": optional([str]),
    "PortBindings": optional({str: object}),
    "Mounts": optional([{"Source": optional(str), "Target": optional(str)}]),
    "DeviceRequests": optional([_REQUEST]),
    "IpcMode": optional(str),
    "ShmSize": optional(int),
    "Ulimits": optional([{"Name": str, "Soft": int, "Hard": int}]),
    **dict.fromkeys(("NetworkMode", "PidMode", "CpusetCpus"), optional(str)),
    **dict.fromkeys(("Memory", "MemorySwap", "NanoCpus", "OomScoreAdj"), optional(int)),
    **dict.fromkeys(("Privileged", "Init"), optional(bool)),
    **dict.fromkeys(_LISTS, optional([str])),
    **dict.fromkeys(("Tmpfs", "Sysctls"), optional({str: str})),
    "Devices": optional([{"PathOnHost": str, "PathInContainer": str, "CgroupPermissions": optional(str)}]),
    "LogConfig": optional({"Type": optional(str), "Config": optional({str: str})}),
}
_NETWORKS = {"Networks": optional({str: (None, {"Aliases": optional([str])})})}
_BINDINGS = [{"HostIp": optional(str), "HostPort": str}]
CONTAINER = {
    "Id": str,
    "Name": str,
    "Image": str,
    "RestartCount": optional(int),
    "State": {"Status": str, "Running": bool, "StartedAt": optional(str)},
    "Config": _CONFIG,
    "HostConfig": _HOST,
    "NetworkSettings": optional(_NETWORKS),
}
IMAGE = {
    "Id": str,
    "RepoTags": optional([str]),
    "RepoDigests": optional([str]),
    "Architecture": str,
    "Os": optional(str),
    "Size": optional(int),
    "Config": optional(_CONFIG),
    "RootFS": optional({"Layers": optional([str])}),
}


def container(raw: Any) -> dict[str, Any]:
    """Return a container's inspect, validated. Raises Failed if the engine's answer is malformed."""
    found: dict[str, Any] = checked(raw, CONTAINER, "the Docker Engine's answer about a container")
    for port, rows in (found["HostConfig"].get("PortBindings") or {}).items():
        if rows is not None:
            checked(rows, _BINDINGS, f"the Docker Engine's answer about port {port} of a container")
    return found


def image(raw: Any) -> dict[str, Any]:
    """Return an image's inspect, validated. Raises Failed if the engine's answer is malformed."""
    found: dict[str, Any] = checked(raw, IMAGE, "the Docker Engine's answer about an image")
    return found


def status_of(status: str) -> str:
    """Return a state as the rest of a sentence: "has exited", "is paused"."""
    return {"exited": "has exited", "created": "was created but never started"}.get(status, f"is {status}")


#: parts of the paths that sparkwright itself mounts (host/records/own_folders.py)
OWN_FOLDERS = ("/.local/share/sparkwright/", "/.local/state/sparkwright/")


def port_bindings(ports: Iterable[str]) -> dict[str, list[dict[str, str]]]:
    """Return ports such as "127.0.0.1:8000:8000/tcp" in the engine's format."""
    bindings: dict[str, list[dict[str, str]]] = {}
    for port in ports:
        *address, host, inside = port.rsplit(":", 2) if port.count(":") > 1 else ["", *port.split(":")]
        key = inside if "/" in inside else f"{inside}/tcp"
        bindings.setdefault(key, []).append({"HostIp": address[0].strip("[]") if address else "", "HostPort": host})
    return bindings


def ports_alike(found: Mapping[str, Any] | None) -> dict[str, list[dict[str, str]]]:
    rows = {
        k: [{"HostIp": b.get("HostIp") or "", "HostPort": b["HostPort"]} for b in v or []]
        for k, v in (found or {}).items()
    }
    return {k: sorted(v, key=lambda b: (b["HostIp"], b["HostPort"])) for k, v in rows.items()}


def gpu_request(gpus: str) -> list[dict[str, Any]]:
    """Return "all" or "device=0,1" as the engine's device requests; "" is none."""
    if not gpus:
        return []
    ids = sorted(gpus[7:].split(",")) if gpus.startswith("device=") else None
    count = 0 if ids else -1 if gpus == "all" else int(gpus)
    return [{"Driver": "", "Count": count, "DeviceIDs": ids, "Capabilities": [["gpu"]], "Options": {}}]


def gpus_alike(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return [
        {**row, "Driver": "", "Options": {}, "DeviceIDs": sorted(row.get("DeviceIDs") or ()) or None}
        for row in rows or ()
    ]


def ulimits(limits: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return limits such as "memlock": "-1" or "soft:hard" in the engine's format."""
    bounds = ((name, *text.partition(":")) for name, text in sorted(limits.items()))
    return [{"Name": name, "Soft": int(soft), "Hard": int(hard or soft)} for name, soft, _, hard in bounds]


def ulimits_alike(rows: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    return sorted(rows or (), key=lambda row: str(row["Name"]))


def env(pairs: list[str] | None) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping."""
    return dict(pair.partition("=")[::2] for pair in pairs or ())


def is_ours(row: Mapping[str, Any]) -> bool:
    """Return True if sparkwright created a container: it has our labels, or mounts a folder of sparkwright.

    Args:
        row: the container's inspect, or its row in the list of all containers.
    """
    labels = row.get("Labels") or (row.get("Config") or {}).get("Labels") or {}
    mounts = (*(row.get("Mounts") or ()), *((row.get("HostConfig") or {}).get("Mounts") or ()))
    own = any(folder in f"{mount.get('Source')}/" for mount in mounts for folder in OWN_FOLDERS)
    return own or any(name.startswith(OWN_LABELS) for name in labels)


def volumes_alike(binds: list[str] | None) -> list[str]:
    """Return mounts in one spelling: without a trailing slash, and without `rw`, which is the default."""
    found = []
    for bind in binds or ():
        parts = bind.split(":")
        folders = [part.rstrip("/") or "/" for part in parts[:2]]
        modes = sorted(mode for mode in ",".join(parts[2:]).split(",") if mode not in ("", "rw"))
        found.append(":".join([*folders, *([",".join(modes)] if modes else [])]))
    return sorted(found)
