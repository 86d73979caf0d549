"""Validate the Docker Engine's inspect data for containers and images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sparkwright.protocol.container import DOCKER_OPTIONS, OWN_LABEL_PREFIX
from sparkwright.trust.shapes import Shape, optional, validate_or_fail

#: path fragments of the folders that only sparkwright mounts (host/records/own_folders.py)
OWN_PATH_FRAGMENTS = ("/.local/share/sparkwright/", "/.local/state/sparkwright/")


def _option_shapes(section: str) -> dict[str, Shape]:
    """Return the shapes of a section's values from the table of Docker options."""
    return {option.key: option.shape for option in DOCKER_OPTIONS.values() if option.key and option.section == section}


_CONFIG_SHAPE = {
    "Env": optional([str]),
    "Labels": optional({str: str}),
    "Entrypoint": optional([str]),
    "Cmd": optional([str]),
    "Image": optional(str),
    **_option_shapes("Config"),
}
_HOST_CONFIG_SHAPE = {
    "RestartPolicy": {"Name": str},
    "Mounts": optional([{"Source": optional(str), "Target": optional(str)}]),
    **_option_shapes("HostConfig"),
}
_NETWORKS_SHAPE = {"Networks": optional({str: (None, {"Aliases": optional([str])})})}
_BINDINGS_SHAPE = [{"HostIp": optional(str), "HostPort": str}]
CONTAINER_SHAPE = {
    "Id": str,
    "Name": str,
    "Image": str,
    "RestartCount": optional(int),
    "State": {"Status": str, "Running": bool, "StartedAt": optional(str), "FinishedAt": optional(str)},
    "Config": _CONFIG_SHAPE,
    "HostConfig": _HOST_CONFIG_SHAPE,
    "NetworkSettings": optional(_NETWORKS_SHAPE),
}
IMAGE_SHAPE = {
    "Id": str,
    "RepoTags": optional([str]),
    "RepoDigests": optional([str]),
    "Architecture": str,
    "Os": optional(str),
    "Size": optional(int),
    "Config": optional(_CONFIG_SHAPE),
    "RootFS": optional({"Layers": optional([str])}),
}


def validate_container(raw: Any) -> dict[str, Any]:
    """Return a container's inspect data, validated. Raises Failed if Docker's answer is malformed."""
    inspected: dict[str, Any] = validate_or_fail(raw, CONTAINER_SHAPE, "the Docker Engine's answer about a container")
    for port, rows in (inspected["HostConfig"].get("PortBindings") or {}).items():
        if rows is not None:
            validate_or_fail(rows, _BINDINGS_SHAPE, f"the Docker Engine's answer about port {port} of a container")
    return inspected


def validate_image(raw: Any) -> dict[str, Any]:
    """Return an image's inspect data, validated. Raises Failed if Docker's answer is malformed."""
    inspected: dict[str, Any] = validate_or_fail(raw, IMAGE_SHAPE, "the Docker Engine's answer about an image")
    return inspected


def describe_status(status: str) -> str:
    """Return a container's status as a predicate: "has exited", "is paused"."""
    return {"exited": "has exited", "created": "was created but never started"}.get(status, f"is {status}")


def parse_env(pairs: list[str] | None) -> dict[str, str]:
    """Parse NAME=VALUE pairs into a mapping."""
    return dict(pair.partition("=")[::2] for pair in pairs or ())


def is_ours(row: Mapping[str, Any]) -> bool:
    """Return True if sparkwright created a container: it has our labels, or mounts one of our folders.

    This includes other users' containers; before changing a container, use `ownership.is_ours`.

    Args:
        row: the container's inspect data, or its row in the list of all containers.
    """
    labels = row.get("Labels") or (row.get("Config") or {}).get("Labels") or {}
    mounts = (*(row.get("Mounts") or ()), *((row.get("HostConfig") or {}).get("Mounts") or ()))
    mounts_own_folder = any(folder in f"{mount.get('Source')}/" for mount in mounts for folder in OWN_PATH_FRAGMENTS)
    return mounts_own_folder or any(name.startswith(OWN_LABEL_PREFIX) for name in labels)
