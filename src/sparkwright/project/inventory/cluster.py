"""A group of hosts that serve one recipe together, and how each of them is reached by the others."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: where the runs on the members meet, unless groups.yml says another port
BARRIER_PORT = 29499
#: an interface of a PCI card, as systemd names it: enp1s0f1np1, enP2p1s0f1np1; its adapter has the same path: rocep1s0f1
PCI_INTERFACE = re.compile(r"en(?P<path>(?:P\d+)?p\d+s\d+(?:f\d+)?)(?:np\d+)?")


@dataclass(frozen=True)
class Fabric:
    """A host's own end of the fast link: its interfaces, their RDMA adapters, and the address at which the others reach it."""

    interfaces: tuple[str, ...]
    address: str
    adapters: tuple[str, ...] = ()

    @property
    def hcas(self) -> tuple[str, ...]:
        """The adapters; where none are written, what rdma-core calls those of these interfaces (60-rdma-persistent-naming)."""
        found = (PCI_INTERFACE.fullmatch(name) for name in self.interfaces)
        return self.adapters or tuple(f"roce{match['path']}" for match in found if match)


@dataclass(frozen=True)
class Cluster:
    """members: the hosts' names by rank, the head first. addresses: of each on the fabric; "" where its file has none.

    port: where the ranks meet; None: the engine's own. barrier_port: where the runs on the members meet. where: "file:line" of
    its recipe.
    """

    name: str
    recipe: str
    members: tuple[str, ...]
    addresses: tuple[str, ...]
    port: int | None = None
    barrier_port: int = BARRIER_PORT
    where: str = ""

    @property
    def head(self) -> str:
        """The member that answers requests."""
        return self.members[0]

    def rank(self, host: str) -> int:
        """A member's rank."""
        return self.members.index(host)

    def place(self, host: str) -> str:
        """A member's place, for a sentence."""
        return f"rank {self.rank(host)} of {self.name}"
