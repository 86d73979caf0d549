"""Ports for interim servers, which take a server's requests while it is replaced."""

from __future__ import annotations

import contextlib
from pathlib import Path

from sparkwright.errors import Refused
from sparkwright.project.gateway.server import Server, load
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.recipe.container_rules import on_host_network

#: distance from a server's port to that of its interim server, up or down; a port that is taken is skipped
APART = 10000
LAST_PORT = 65535


def port(project: Path, inventory: Inventory, server: Server) -> int:
    """Return the port of a server's interim server; every command computes the same.

    0 for a cluster, and on the host's network, where two ports cannot differ.
    """
    if server.host.cluster is not None or on_host_network(server.recipe.file):
        return 0
    found = server.port + APART if server.port + APART <= LAST_PORT else server.port - APART
    taken = _taken(project, inventory, server.host)
    while found in taken:
        found += 1
    return found if found <= LAST_PORT else 0


def _taken(project: Path, inventory: Inventory, host: Host) -> set[int]:
    """Return the ports that the files give to other servers of this machine. Simulated and local hosts are on one machine."""

    def here(other: Host) -> bool:
        return other.machine == host.machine or "ssh" not in (other.connection, host.connection)

    gateways = (gateway for gateway in inventory.gateways.values() if here(inventory.machines[gateway.host]))
    found = {port for gateway in gateways for port in gateway.ports.values()}
    for other in inventory.hosts.values():
        if other.recipe and here(other):
            with contextlib.suppress(Refused):  # that server's own check reports an unreadable recipe
                found |= load(project, other).published
    return found
