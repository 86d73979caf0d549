"""The network of a simulated container as the engine reports it: a bridge with published ports, or the host's own."""

from __future__ import annotations

from typing import Any

#: networks that every engine has; no others can be created here
NETWORKS = ("bridge", "host", "none")


def mode(body: dict[str, Any]) -> str:
    """Return the network mode of the request that created a container."""
    return str(body["HostConfig"].get("NetworkMode") or "default")


def settings(body: dict[str, Any]) -> dict[str, Any]:
    """Return the network settings as `docker inspect` shows them."""
    ports = {} if mode(body) == "host" else body["HostConfig"].get("PortBindings") or {}
    return {"Ports": ports, "Networks": {mode(body).replace("default", "bridge"): {"Aliases": None}}}


def ports(body: dict[str, Any], port: int) -> list[dict[str, Any]]:
    """Return the published ports of a running container as a listing shows them.

    Args:
        body: request that created the container.
        port: of the host; 0 for none.
    """
    published = port and mode(body) != "host"
    return [{"IP": "0.0.0.0", "PrivatePort": 8000, "PublicPort": port, "Type": "tcp"}] if published else []
