"""Servers behind a gateway, the ports of their interim servers, and the gateways in front of a host."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.gateway import certificate
from sparkwright.project import recipe
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.project.recipe.section_rules import is_on_host_network
from sparkwright.trust.names import expand_home

#: distance between a server's port and its interim server's, up or down; ports in use are skipped
INTERIM_PORT_OFFSET = 10000
MAX_PORT = 65535
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Server:
    """A host with a server, and its recipe."""

    host: Host
    recipe: recipe.Recipe

    @property
    def port(self) -> int:
        return recipe.serve_port(self.host, self.recipe)

    @property
    def used_ports(self) -> set[int]:
        """All ports that the server uses on its host."""
        other_ports = self.recipe.file.container.ports[1:]
        return {self.port, *(int(text.split(":")[-2]) for text in other_ports if text.split(":")[-2].isdigit())}

    @property
    def where(self) -> str:
        """Location of the setting that selects the recipe, as "file:line"."""
        return self.host.set_at.get("recipe", self.host.where)


def load_server(project: Path, host: Host) -> Server:
    """Return a host's server. Raises Refused if its recipe is missing or invalid."""
    return Server(host, recipe.load(project, str(host.recipe), named_at=host.set_at.get("recipe", "")))


def interim_port(project: Path, inventory: Inventory, server: Server) -> int:
    """Return the port of a server's interim server, which is the same for every command; 0 if the server can't have one.

    A cluster can't have one, nor can a server on the host's network, where both would use the engine's port.
    """
    if server.host.cluster is not None or is_on_host_network(server.recipe.file):
        return 0
    is_above_max = server.port + INTERIM_PORT_OFFSET > MAX_PORT
    candidate = server.port - INTERIM_PORT_OFFSET if is_above_max else server.port + INTERIM_PORT_OFFSET
    used_ports = _used_ports(project, inventory, server.host)
    while candidate in used_ports:
        candidate += 1
    return candidate if candidate <= MAX_PORT else 0


def _used_ports(project: Path, inventory: Inventory, host: Host) -> set[int]:
    """Return the ports of all servers and gateways on this machine. Simulated and local hosts are on the same machine."""

    def is_same_machine(other: Host) -> bool:
        return other.machine == host.machine or "ssh" not in (other.connection, host.connection)

    gateways = (gateway for gateway in inventory.gateways.values() if is_same_machine(inventory.machines[gateway.host]))
    ports = {port for gateway in gateways for port in gateway.ports.values()}
    for other in inventory.hosts.values():
        if other.recipe and is_same_machine(other):
            with contextlib.suppress(Refused):  # an unreadable recipe is reported by its own server's check
                ports |= load_server(project, other).used_ports
    return ports


def list_gateways(project: Path, inventory: Inventory, host: Host) -> list[dict[str, Any]]:
    """Return the gateways that route to this host; none for a worker of a cluster.

    `port` is the control port, `certificate` a SHA-256 (empty if unreadable), and `server` the gateway's name for this host.
    """
    if host.is_worker:
        return []
    return [
        {
            "name": gateway.name,
            "address": _gateway_address(inventory, gateway, host),
            "port": gateway.control_port,
            "tls": gateway.file.tls != "none",
            "certificate": _certificate_fingerprint(project, gateway),
            "server": host.upstream,
        }
        for gateway in inventory.gateways.values()
        if host.machine in gateway.members
    ]


def _certificate_fingerprint(project: Path, gateway: Gateway) -> str:
    """Return the fingerprint by which hosts verify the gateway; empty if unreadable, which `gateway.deploy` reports."""
    if gateway.file.tls == "none":
        return ""
    try:
        return fingerprint((project / expand_home(gateway.file.tls.certificate)).read_text("ascii"))
    except (OSError, ValueError):
        return ""


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of the first certificate in a PEM text. Raises ValueError if there is no certificate."""
    return hashlib.sha256(certificate.first_certificate(pem)).hexdigest()


def _gateway_address(inventory: Inventory, gateway: Gateway, host: Host) -> str:
    """Return the address at which this host reaches the gateway. Simulated and local hosts are on the same machine."""
    gateway_host = inventory.machines[gateway.host]
    if gateway_host.name == host.machine or gateway_host.connection != "ssh":
        return LOOPBACK
    return gateway.file.addresses.get(gateway_host.name) or gateway_host.address
