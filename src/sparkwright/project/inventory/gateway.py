"""A gateway as groups.yml describes it: one address for the models of a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkwright.project.inventory.gateway_models import GatewayFile


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
