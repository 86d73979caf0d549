"""What the Docker Engine says of a container or an image, checked before anything reads it."""

from __future__ import annotations

from typing import Any

from sparkwright.trust.json_shapes import checked

_CONFIG = {"Env?": [str], "Labels?": {str: str}, "Entrypoint?": [str], "Cmd?": [str]}
_REQUEST = {"Count?": int, "DeviceIDs?": [str], "Capabilities?": [[str]]}
_HOST = {
    "RestartPolicy": {"Name": str},
    "Binds?": [str],
    "PortBindings?": {str: object},
    "DeviceRequests?": [_REQUEST],
    "IpcMode?": str,
    "ShmSize?": int,
    "Ulimits?": [{"Name": str, "Soft": int, "Hard": int}],
}
_BINDINGS = [{"HostIp?": str, "HostPort": str}]
CONTAINER = {
    "Id": str,
    "Name": str,
    "Image": str,
    "RestartCount?": int,
    "State": {"Status": str, "Running": bool, "StartedAt?": str},
    "Config": _CONFIG,
    "HostConfig": _HOST,
}
IMAGE = {
    "Id": str,
    "RepoTags?": [str],
    "RepoDigests?": [str],
    "Architecture": str,
    "Os?": str,
    "Size?": int,
    "Config?": _CONFIG,
    "RootFS?": {"Layers?": [str]},
}


def container(raw: Any) -> dict[str, Any]:
    """A container's inspect. Raises Failed when the engine's answer is none."""
    found: dict[str, Any] = checked(raw, CONTAINER, "the Docker Engine's answer about a container")
    for port, rows in (found["HostConfig"].get("PortBindings") or {}).items():
        if rows is not None:
            checked(rows, _BINDINGS, f"the Docker Engine's answer about port {port} of a container")
    return found


def image(raw: Any) -> dict[str, Any]:
    """An image's inspect. Raises Failed when the engine's answer is none."""
    found: dict[str, Any] = checked(raw, IMAGE, "the Docker Engine's answer about an image")
    return found
