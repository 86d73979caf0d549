"""The gateways in front of a host, as its own runs ask them."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path
from typing import Any

from sparkwright.project.inventory.gateway import Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.inventory import Inventory
from sparkwright.trust.names import below_home

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
