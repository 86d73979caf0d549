"""Clusters and gateways defined in groups.yml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright import defaults

if TYPE_CHECKING:
    from sparkwright.project.inventory.models import GatewayFile


#: systemd's name for an interface of a PCI card: enp1s0f1np1, enP2p1s0f1np1; its RDMA adapter's name has `path` too: rocep1s0f1
PCI_INTERFACE_PATTERN = re.compile(r"en(?P<path>(?:P\d+)?p\d+s\d+(?:f\d+)?)(?:np\d+)?")


@dataclass(frozen=True)
class Fabric:
    """A host's interfaces on the fast link of its cluster."""

    interfaces: tuple[str, ...]
    #: IP address at which the other members reach the host
    address: str
    #: RDMA adapters, if set
    adapters: tuple[str, ...] = ()

    @property
    def hcas(self) -> tuple[str, ...]:
        """RDMA adapters; if none are set, the names that rdma-core's 60-rdma-persistent-naming gives them."""
        matches = (PCI_INTERFACE_PATTERN.fullmatch(name) for name in self.interfaces)
        return self.adapters or tuple(f"roce{match['path']}" for match in matches if match)


@dataclass(frozen=True)
class Cluster:
    """A group of hosts that serve one recipe together."""

    name: str
    recipe: str
    #: names of the hosts by rank, the head first
    members: tuple[str, ...]
    #: addresses of the members on the fabric, by rank; "" if the host has no `fabric`
    addresses: tuple[str, ...]
    #: master port of the ranks on the head; None for the engine's default
    port: int | None = None
    #: port on the head that the hosts' runs use to synchronize
    barrier_port: int = defaults.BARRIER_PORT
    #: "file:line" of its recipe
    where: str = ""

    @property
    def head(self) -> str:
        """Name of the host that answers requests."""
        return self.members[0]

    def rank(self, host: str) -> int:
        return self.members.index(host)

    def describe_rank(self, host: str) -> str:
        """Return "rank N of CLUSTER", for messages."""
        return f"rank {self.rank(host)} of {self.name}"


@dataclass(frozen=True)
class Gateway:
    """A gateway, which serves the models of a group at one address."""

    #: name of its group
    name: str
    #: name of the host that it runs on
    host: str
    #: names of the hosts of the group
    members: tuple[str, ...]
    #: `gateway` section of the group
    file: GatewayFile
    #: "file:line" of each key that is set; "" is the section itself
    set_at: Mapping[str, str]

    @property
    def control_port(self) -> int:
        """Port at which hosts drain their servers and return them to service."""
        return self.file.control_port or self.file.port + 1

    @property
    def ports(self) -> dict[str, int]:
        """Ports that it uses on its host, by key."""
        return {"port": self.file.port, "control_port": self.control_port}

    def where(self, key: str) -> str:
        """Return "file:line" of a key; of the section if the key is not set."""
        return self.set_at.get(key, self.set_at[""])
