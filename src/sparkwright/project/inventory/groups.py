"""Clusters and gateways: what groups.yml makes of a group of hosts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkwright import defaults

if TYPE_CHECKING:
    from sparkwright.project.inventory.models import GatewayFile


#: an interface of a PCI card, as systemd names it: enp1s0f1np1, enP2p1s0f1np1; its adapter has the same path: rocep1s0f1
PCI_INTERFACE = re.compile(r"en(?P<path>(?:P\d+)?p\d+s\d+(?:f\d+)?)(?:np\d+)?")


@dataclass(frozen=True)
class Fabric:
    """A host's end of the fast link: its interfaces, their RDMA adapters, and its address for the other members."""

    interfaces: tuple[str, ...]
    address: str
    adapters: tuple[str, ...] = ()

    @property
    def hcas(self) -> tuple[str, ...]:
        """The RDMA adapters; if none are set, rdma-core's names for those of the interfaces (60-rdma-persistent-naming)."""
        matches = (PCI_INTERFACE.fullmatch(name) for name in self.interfaces)
        return self.adapters or tuple(f"roce{match['path']}" for match in matches if match)


@dataclass(frozen=True)
class Cluster:
    """A group of hosts that serve one recipe together."""

    name: str
    recipe: str
    #: names of the hosts by rank, the head first
    members: tuple[str, ...]
    #: addresses of the members on the fabric; "" if a host's file has none
    addresses: tuple[str, ...]
    #: port where the ranks meet; None for the engine's own
    port: int | None = None
    #: port where the runs on the members meet
    barrier_port: int = defaults.BARRIER_PORT
    #: "file:line" of its recipe
    where: str = ""

    @property
    def head(self) -> str:
        """The member that answers requests."""
        return self.members[0]

    def rank(self, host: str) -> int:
        """Return a member's rank."""
        return self.members.index(host)

    def place(self, host: str) -> str:
        """Return a member's rank and cluster, for a message."""
        return f"rank {self.rank(host)} of {self.name}"


@dataclass(frozen=True)
class Gateway:
    """A gateway of the inventory, which gives the models of a group one address."""

    #: the name of its group
    name: str
    #: the host that it runs on
    host: str
    #: names of the hosts of the group
    members: tuple[str, ...]
    #: its section of groups.yml
    file: GatewayFile
    #: "file:line" of its keys, for messages
    set_at: Mapping[str, str]

    @property
    def control_port(self) -> int:
        """The port at which its hosts control it."""
        return self.file.control_port or self.file.port + 1

    @property
    def ports(self) -> dict[str, int]:
        """The ports that it takes on its host, by key."""
        return {"port": self.file.port, "control_port": self.control_port}

    def where(self, key: str) -> str:
        """Return "file:line" of one of its keys; of the gateway itself if the key is not set."""
        return self.set_at.get(key, self.set_at[""])
