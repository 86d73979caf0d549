"""The Docker Engine's spelling of a spec's values, and one normal form for equal spellings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sparkwright.protocol.container import OWN_LABELS

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
