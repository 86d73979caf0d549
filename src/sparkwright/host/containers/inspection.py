"""The Docker Engine's inspect of a container or an image, validated before use."""

from __future__ import annotations

from typing import Any

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
