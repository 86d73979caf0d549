"""A host of the inventory, apart from the models that check it: connecting to one needs no Pydantic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from sparkwright.project.inventory.groups import Cluster, Fabric


@dataclass(frozen=True, slots=True)
class Wake:
    """The rules by which requests at a gateway change the turn of a server on demand."""

    #: one for this server wakes it
    on_request: bool = False
    #: idle time after which the server whose place it took is awake again; 0: never
    sleep_after_s: float = 0.0
    #: once awake, it keeps its turn for so long
    stay_awake_s: float = 0.0


NO_WAKE = Wake()


class Source(Protocol):
    """The source of a secret: an environment variable, a file or a command's output, see `models.SecretSource`."""

    @property
    def env(self) -> str | None: ...
    @property
    def file(self) -> str | None: ...
    @property
    def command(self) -> Sequence[str] | None: ...


@dataclass(frozen=True)
class Host:
    """A host, or one of the servers of a host that `serves` several."""

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
    #: variable of the laptop's environment with the key of its recipe's server
    key_variable: str = ""
    #: its file, for messages
    where: str = ""
    #: "file:line" that later mistakes are blamed on, by `recipe`, `model_from`, `serve_port` or `vars.NAME`
    set_at: Mapping[str, str] = field(default_factory=dict)
    #: its end of the fast link
    fabric: Fabric | None = None
    #: the cluster that it is a member of
    cluster: Cluster | None = None
    #: for one of several servers, the machine's name; `name` is then MACHINE/RECIPE
    on: str = ""
    #: for one of several servers, the name of its container
    server: str = ""
    #: for a server on demand, all containers that take turns in memory, in the listed order
    turns: tuple[str, ...] = ()
    #: for a server on demand, how requests change its turn
    wake: Wake = NO_WAKE

    @property
    def machine(self) -> str:
        """The machine's name, shared by its servers."""
        return self.on or self.name

    @property
    def upstream(self) -> str:
        """The name of its server at a gateway: HAProxy allows no slash in a name."""
        return self.name.replace("/", ":")

    @property
    def title(self) -> str:
        """Its name, with the rank of a cluster's member."""
        return f"{self.name} ({self.cluster.place(self.name)})" if self.cluster else self.name

    @property
    def connection_settings(self) -> tuple[str, str, str | None, int | None]:
        """All values that a connection depends on."""
        return self.connection, self.address, self.user, self.port
