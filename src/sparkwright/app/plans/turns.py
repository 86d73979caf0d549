"""The servers of a machine that share memory by turns, for the plan of one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sparkwright.project.gateway.before import in_front_of
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory


def of(project: Path, inventory: Inventory, host: Host) -> list[dict[str, Any]]:
    """Return the servers that take turns with a server, including itself, as they are listed.

    Each has name (of the container), host (name of its target), recipe and gateways (those in front of it). Empty for a server
    that is always on.
    """
    if not host.turns:
        return []
    return [
        {
            "name": server.server,
            "host": server.name,
            "recipe": server.recipe,
            "gateways": in_front_of(project, inventory, server),
        }
        for server in inventory.servers_of(host.machine)
        if server.server in host.turns
    ]
