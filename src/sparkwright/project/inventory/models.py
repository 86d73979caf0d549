"""Pydantic models of hosts/*.yml and hosts/groups.yml."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from sparkwright import defaults, units
from sparkwright.errors import Refused
from sparkwright.project.documents.validation import Strict, rule
from sparkwright.project.inventory.gateway_models import GatewayFile
from sparkwright.project.inventory.secret_model import SecretSource as SecretSource


def _why_not_a_home(path: str) -> str:
    return "" if path.startswith("/") and ":" not in path else "is not a directory path: start with /, no colons"


Home = Annotated[str, rule(_why_not_a_home)]


class Shared(Strict):
    """Settings that a group gives to its hosts and a host may set itself. A host's own value wins."""

    user: str | None = Field(None, description="the ssh user (default: your ssh configuration)")
    port: int | None = Field(None, description="sshd's port (default: your ssh configuration)", ge=1, le=65535)
    home: Home | None = Field(None, description="the user's home directory on the host, if not /home/USER (or /root)")
    recipe: str | None = Field(None, description="the recipe to serve: a file of recipes/, without .yml")
    serve_port: int | None = Field(
        None, description="publish the server on this port instead of the recipe's", ge=1, le=65535
    )
    registry_mirror: str | None = Field(
        None,
        description="a registry mirror, e.g. mirror.lan:5000; tried first for pulls by digest",
        pattern=r"^[A-Za-z0-9.-]+(:[0-9]+)?(/[a-z0-9._/-]+)?$",
    )
    model_from: str | None = Field(
        None, description="the host to copy the model from instead of the hub; on that host itself: the hub"
    )
    env: dict[str, str] = Field(
        default_factory=dict,
        description="environment variables on the host: HF_ENDPOINT; HTTPS_PROXY (with a password under `secrets`)",
    )
    secrets: dict[str, SecretSource] = Field(
        default_factory=dict, description="by name, e.g. HF_TOKEN: {env: HF_TOKEN}"
    )
    vars: dict[str, Any] = Field(default_factory=dict, description="variables for playbooks and templates")


Interface = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")]
Adapter = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]


def _why_not_an_address(text: str) -> str:
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return "is not an IP address, e.g. 192.168.100.10."
    usable = not (found.is_unspecified or found.is_multicast)
    return "" if usable else "is not an address that another host can reach."


class FabricFile(Strict):
    """A host's end of the fast link to the others of its cluster. `invoke cluster.inspect` proposes it."""

    interfaces: list[Interface] = Field(
        description="its network interfaces, both twins of a port: [enp1s0f1np1, enP2p1s0f1np1]",
        min_length=1,
        max_length=8,
    )
    address: Annotated[str, rule(_why_not_an_address)] = Field(description="its address on the first of them")
    adapters: list[Adapter] = Field(
        default_factory=list,
        description="their RDMA adapters, where those are not named after them: [rocep1s0f1, roceP2p1s0f1]",
        max_length=8,
    )


class ClusterFile(Strict):
    """A recipe that the hosts of a group serve together."""

    recipe: str = Field(description="the recipe that they serve together; it says `parallel`")
    head: str = Field(description="the host that answers requests; rank 0")
    port: int | None = Field(
        None, description="where the ranks meet on the head (default: the engine's own)", ge=1024, le=65535
    )
    barrier_port: int = Field(
        defaults.BARRIER_PORT, description="where the runs on the hosts meet on the head", ge=1024, le=65535
    )


def _why_not_a_time(text: str) -> str:
    try:
        units.seconds(text, least_s=60)
    except Refused:
        return "is not a time of a minute or more, e.g. 30m"
    return ""


Minutes = Annotated[str, rule(_why_not_a_time)]


class ServedFile(Strict):
    """One of the recipes that a host serves beside each other or by turns."""

    recipe: str = Field(description="the recipe: a file of recipes/, without .yml")
    port: int | None = Field(
        None, description="publish this server on this port instead of the recipe's", ge=1, le=65535
    )
    wake: Literal["on_request"] | None = Field(
        None,
        description="under `on_demand`: `on_request`: a request at a gateway for it, while it is asleep, wakes it "
        "(default: only `invoke switch` does)",
    )
    sleep_after: Minutes | None = Field(
        None,
        description="with `wake`: after so long without a request, the server whose place it took is awake again, e.g. 30m "
        "(default: it stays)",
    )
    stay_awake: Minutes | None = Field(
        None,
        description="under `on_demand`: once awake, no request wakes another one in its place for so long "
        f"(default: {defaults.STAY_AWAKE})",
    )


def _kind(entry: Any) -> str:
    return "name" if isinstance(entry, str) else "entry"


#: a mistake in an entry is reported for what it is, and not as if a name was expected
Served = Annotated[
    Annotated[str, Tag("name")] | Annotated[ServedFile, Tag("entry")],
    Discriminator(_kind),
]


class HostFile(Shared):
    """hosts/NAME.yml: one host; the file's name is the host's name."""

    address: str | None = Field(None, description="name, IP or ssh alias (default: the host's name)")
    connection: Literal["ssh", "local", "sandbox"] = Field("ssh", description="connection type")
    groups: list[str] = Field(default_factory=list, description="the groups it belongs to")
    fabric: FabricFile | None = Field(None, description="its end of the fast link to the others of its cluster")
    serves: list[Served] | None = Field(
        None,
        description="instead of `recipe`: several recipes beside each other, each with its own port: [qwen3.5-35b, small]",
        min_length=1,
        max_length=8,
    )
    on_demand: list[Served] | None = Field(
        None,
        description="recipes that share memory by turns, at least two: one of them is awake at a time, the first to begin with; "
        "`invoke switch` swaps them",
        min_length=1,
        max_length=8,
    )

    @property
    def several(self) -> bool:
        """True if it lists its recipes instead of naming one."""
        return self.serves is not None or self.on_demand is not None


class GroupFile(Shared):
    """One group of hosts/groups.yml."""

    hosts: list[str] = Field(
        default_factory=list, description="members, besides the hosts that name the group themselves"
    )
    min_serving: int | None = Field(
        None,
        ge=0,
        description="minimum number of hosts of this group that keep serving during a run; "
        "default: 1 when the run includes several hosts of the group",
    )
    cluster: ClusterFile | None = Field(None, description="the hosts of this group serve one recipe together")
    gateway: GatewayFile | None = Field(None, description="one address for the models of this group")
