"""Servers behind a gateway, their interim servers, and the gateways in front of a host."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project import recipe
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.recipe.section_rules import on_host_network
from sparkwright.trust.names import below_home


@dataclass(frozen=True)
class Server:
    """A member of the group that answers requests, and its recipe."""

    host: Host
    recipe: recipe.Recipe

    @property
    def port(self) -> int:
        return recipe.serve_port(self.host, self.recipe)

    @property
    def published(self) -> set[int]:
        """Every port that it takes on its host."""
        others = self.recipe.file.container.ports[1:]
        return {self.port, *(int(text.split(":")[-2]) for text in others if text.split(":")[-2].isdigit())}

    @property
    def where(self) -> str:
        """ "file:line" of the setting that makes it serve this recipe."""
        return self.host.set_at.get("recipe", self.host.where)


def load(project: Path, host: Host) -> Server:
    """Load the recipe of a host and return the server. Raises Refused."""
    return Server(host, recipe.load(project, str(host.recipe), named_at=host.set_at.get("recipe", "")))


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


LOOPBACK = "127.0.0.1"
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def in_front_of(project: Path, inventory: Inventory, host: Host) -> list[dict[str, Any]]:
    """Return of each gateway that routes to this host: name, address, port (the one for its hosts), tls, certificate (its
    SHA-256; empty where it cannot be read), and server, as it calls this host's.

    A worker of a cluster has none.
    """
    if host.cluster is not None and host.cluster.head != host.name:
        return []
    return [
        {
            "name": gateway.name,
            "address": _address(inventory, gateway, host),
            "port": gateway.control_port,
            "tls": gateway.file.tls != "none",
            "certificate": _certificate(project, gateway),
            "server": host.upstream,
        }
        for gateway in inventory.gateways.values()
        if host.machine in gateway.members
    ]


def _certificate(project: Path, gateway: Gateway) -> str:
    """Return the fingerprint of the certificate by which hosts know the gateway.

    It never fails: `gateway.deploy` checks the file.
    """
    if gateway.file.tls == "none":
        return ""
    try:
        return fingerprint((project / below_home(gateway.file.tls.certificate)).read_text("ascii"))
    except (OSError, ValueError):
        return ""


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of the first certificate in a PEM text. Raises ValueError if there is none."""
    _, begin, rest = pem.partition(BEGIN)
    first, end, _ = rest.partition(END)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(begin + first + end)).hexdigest()


def _address(inventory: Inventory, gateway: Gateway, host: Host) -> str:
    """Return the address at which this host reaches the gateway's host. Simulated and local hosts are on one machine."""
    there = inventory.machines[gateway.host]
    if there.name == host.machine or there.connection != "ssh":
        return LOOPBACK
    return gateway.file.addresses.get(there.name) or there.address
