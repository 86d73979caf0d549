"""A host of the inventory, in a module without Pydantic models, so that connecting does not import Pydantic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sparkwright.project.inventory.groups import Cluster, Fabric


@dataclass(frozen=True, slots=True)
class Wake:
    """Rules by which gateway requests and idle time change which `on_demand` server is awake."""

    #: True if a request for this server wakes it
    on_request: bool = False
    #: idle time after which the server that it replaced is woken again; 0 for never
    sleep_after_s: float = 0.0
    #: minimum time awake before a request may wake another server
    stay_awake_s: float = 0.0


NO_WAKE = Wake()


class Source(Protocol):
    """Source of a secret; see `models.SecretSource`."""

    @property
    def env(self) -> str | None: ...
    @property
    def file(self) -> str | None: ...
    @property
    def command(self) -> Sequence[str] | None: ...


@dataclass(frozen=True)
class Host:
    """A host, or one of the servers of a machine that serves several recipes."""

    name: str
    address: str
    connection: str = "ssh"
    user: str | None = None
    #: port of sshd
    port: int | None = None
    home: str | None = None
    recipe: str | None = None
    #: published port of the server, if not the recipe's
    serve_port: int | None = None
    registry_mirror: str | None = None
    model_from: str | None = None
    groups: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    #: merged variables: all < groups < host
    vars: Mapping[str, Any] = field(default_factory=dict)
    secret_sources: Mapping[str, Source] = field(default_factory=dict)
    #: environment variable on the laptop that holds the server key of its recipe; empty for ssh hosts
    key_variable: str = ""
    #: path of its file, for messages
    where: str = ""
    #: "file:line" of each setting, for messages; keys: `recipe`, `model_from`, `serve_port`, `vars.NAME`, `secrets.NAME`
    set_at: Mapping[str, str] = field(default_factory=dict)
    fabric: Fabric | None = None
    cluster: Cluster | None = None
    #: name of the machine if it serves several recipes, else empty; `name` is then MACHINE/RECIPE
    shared_machine: str = ""
    #: name of the server's container if the machine serves several recipes, else empty
    server: str = ""
    #: for `on_demand` servers, the containers that take turns in memory, in the listed order
    turns: tuple[str, ...] = ()
    wake: Wake = NO_WAKE

    @property
    def machine(self) -> str:
        """Name of the machine; the same for all its servers."""
        return self.shared_machine or self.name

    @property
    def upstream(self) -> str:
        """Name of its server in the gateway's configuration, where HAProxy allows no slash."""
        return self.name.replace("/", ":")

    @property
    def title(self) -> str:
        """Name, with rank and cluster if it belongs to one."""
        return f"{self.name} ({self.cluster.describe_rank(self.name)})" if self.cluster else self.name

    @property
    def is_worker(self) -> bool:
        """True for a cluster's member without an API: every member except the head."""
        return self.cluster is not None and self.cluster.head != self.name

    @property
    def connection_settings(self) -> tuple[str, str, str | None, int | None]:
        """Values that identify the connection: connection type, address, user, port."""
        return self.connection, self.address, self.user, self.port
