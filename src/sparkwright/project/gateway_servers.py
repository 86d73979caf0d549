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
from sparkwright.project.recipe.section_rules import is_on_host_network
from sparkwright.trust.names import expand_home


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


def load_server(project: Path, host: Host) -> Server:
    """Load the recipe of a host and return the server. Raises Refused."""
    return Server(host, recipe.load(project, str(host.recipe), named_at=host.set_at.get("recipe", "")))


#: distance from a server's port to that of its interim server, up or down; a port that is taken is skipped
INTERIM_PORT_OFFSET = 10000
MAX_PORT = 65535


def interim_port(project: Path, inventory: Inventory, server: Server) -> int:
    """Return the port of a server's interim server; every command computes the same.

    0 for a cluster, and on the host's network, where two ports cannot differ.
    """
    if server.host.cluster is not None or is_on_host_network(server.recipe.file):
        return 0
    candidate = (
        server.port + INTERIM_PORT_OFFSET
        if server.port + INTERIM_PORT_OFFSET <= MAX_PORT
        else server.port - INTERIM_PORT_OFFSET
    )
    used = _used_ports(project, inventory, server.host)
    while candidate in used:
        candidate += 1
    return candidate if candidate <= MAX_PORT else 0


def _used_ports(project: Path, inventory: Inventory, host: Host) -> set[int]:
    """Return the ports that the files give to other servers of this machine. Simulated and local hosts are on one machine."""

    def is_same_machine(other: Host) -> bool:
        return other.machine == host.machine or "ssh" not in (other.connection, host.connection)

    gateways = (gateway for gateway in inventory.gateways.values() if is_same_machine(inventory.machines[gateway.host]))
    ports = {port for gateway in gateways for port in gateway.ports.values()}
    for other in inventory.hosts.values():
        if other.recipe and is_same_machine(other):
            with contextlib.suppress(Refused):  # that server's own check reports an unreadable recipe
                ports |= load_server(project, other).published
    return ports


LOOPBACK = "127.0.0.1"
PEM_BEGIN, PEM_END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def list_gateways(project: Path, inventory: Inventory, host: Host) -> list[dict[str, Any]]:
    """Return the gateways that route to this host, each as name, address, port (the one for its hosts), tls, certificate (its
    SHA-256; empty where it cannot be read), and server, as it calls this host's.

    A worker of a cluster has none.
    """
    if host.cluster is not None and host.cluster.head != host.name:
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
    """Return the fingerprint of the certificate by which hosts know the gateway.

    It never fails: `gateway.deploy` checks the file.
    """
    if gateway.file.tls == "none":
        return ""
    try:
        return fingerprint((project / expand_home(gateway.file.tls.certificate)).read_text("ascii"))
    except (OSError, ValueError):
        return ""


def fingerprint(pem: str) -> str:
    """Return the SHA-256 of the first certificate in a PEM text. Raises ValueError if there is none."""
    _, begin, rest = pem.partition(PEM_BEGIN)
    first, end, _ = rest.partition(PEM_END)
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(begin + first + end)).hexdigest()


def _gateway_address(inventory: Inventory, gateway: Gateway, host: Host) -> str:
    """Return the address at which this host reaches the gateway's host. Simulated and local hosts are on one machine."""
    gateway_host = inventory.machines[gateway.host]
    if gateway_host.name == host.machine or gateway_host.connection != "ssh":
        return LOOPBACK
    return gateway.file.addresses.get(gateway_host.name) or gateway_host.address
