"""A pretend container's network, as the engine tells it: the bridge with published ports, or the host's own with none."""

from __future__ import annotations

from typing import Any

#: those that every engine has; nobody can make others here
NETWORKS = ("bridge", "host", "none")


def mode(body: dict[str, Any]) -> str:
    """body: what the container was created with."""
    return str(body["HostConfig"].get("NetworkMode") or "default")


def settings(body: dict[str, Any]) -> dict[str, Any]:
    """As an inspect shows it."""
    ports = {} if mode(body) == "host" else body["HostConfig"].get("PortBindings") or {}
    return {"Ports": ports, "Networks": {mode(body).replace("default", "bridge"): {"Aliases": None}}}


def ports(body: dict[str, Any], port: int) -> list[dict[str, Any]]:
    """The published ports of a running container, as a listing shows them. port: the host's, 0 for none."""
    published = port and mode(body) != "host"
    return [{"IP": "0.0.0.0", "PrivatePort": 8000, "PublicPort": port, "Type": "tcp"}] if published else []
