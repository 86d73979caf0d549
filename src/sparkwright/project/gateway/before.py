"""The gateways in front of a host, as its own runs ask them."""

from __future__ import annotations

from typing import Any

from sparkwright.project.inventory.gateway import Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory

LOOPBACK = "127.0.0.1"


def in_front_of(inventory: Inventory, host: Host) -> list[dict[str, Any]]:
    """Of each gateway that routes to this host: name, address, port, tls, and server, as it calls this host's.

    A worker of a cluster has none.
    """
    if host.cluster is not None and host.cluster.head != host.name:
        return []
    return [
        {
            "name": one.name,
            "address": _address(inventory, one, host),
            "port": one.file.port,
            "tls": one.file.tls != "none",
            "server": host.upstream,
        }
        for one in inventory.gateways.values()
        if host.machine in one.members
    ]


def _address(inventory: Inventory, gateway: Gateway, host: Host) -> str:
    """Where this host reaches the gateway's. Simulated and local hosts are on one machine."""
    there = inventory.machines[gateway.host]
    if there.name == host.machine or there.connection != "ssh":
        return LOOPBACK
    return gateway.file.addresses.get(there.name) or there.address
