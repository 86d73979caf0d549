"""What is known of a host, without what checks it: whoever connects to one needs no Pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkwright.project.inventory.cluster import Cluster, Fabric
    from sparkwright.project.inventory.secret_source import Source


@dataclass(frozen=True)
class Host:
    """One host, or one of the servers of a host that `serves` several.

    port: sshd's. serve_port: where the server is published, if not where the recipe says. where: its file, for messages. vars:
    all < groups < host. set_at: "file:line" of what a mistake is blamed on later, by `recipe`, `model_from`, `serve_port` or
    `vars.NAME`. key_variable: of the laptop's environment, that holds the key of its recipe's server. fabric: its end of the
    fast link. cluster: the one that it is a member of.

    on, server: of one of several servers, the machine's name and that of the server's container; `name` is then MACHINE/RECIPE.
    turns: of one that is on demand, the containers that share memory by turns, its own among them, as they are listed.
    """

    name: str
    address: str
    connection: str = "ssh"
    user: str | None = None
    port: int | None = None
    home: str | None = None
    recipe: str | None = None
    serve_port: int | None = None
    registry_mirror: str | None = None
    model_from: str | None = None
    groups: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    vars: Mapping[str, Any] = field(default_factory=dict)
    secret_sources: Mapping[str, Source] = field(default_factory=dict)
    key_variable: str = ""
    where: str = ""
    set_at: Mapping[str, str] = field(default_factory=dict)
    fabric: Fabric | None = None
    cluster: Cluster | None = None
    on: str = ""
    server: str = ""
    turns: tuple[str, ...] = ()

    @property
    def machine(self) -> str:
        """The machine's name, which several of its servers share."""
        return self.on or self.name

    @property
    def upstream(self) -> str:
        """What a gateway calls its server: HAProxy takes no slash in a name."""
        return self.name.replace("/", ":")

    @property
    def title(self) -> str:
        """Its name; of a member of a cluster with its rank."""
        return f"{self.name} ({self.cluster.place(self.name)})" if self.cluster else self.name

    @property
    def way(self) -> tuple[str, str, str | None, int | None]:
        """All that connecting depends on."""
        return self.connection, self.address, self.user, self.port
