"""The interface of engines that serve one model from several hosts: splits of the model, and the members' settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from packaging.version import Version

from sparkwright.engines.findings import Finding


@dataclass(frozen=True, slots=True)
class Split:
    """A split of a model over several hosts."""

    #: tensor parallelism: number of hosts that share each layer
    tensor: int = 1
    #: pipeline parallelism: number of groups of consecutive layers
    pipeline: int = 1

    @property
    def hosts(self) -> int:
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """A member of a cluster."""

    #: 0 for the head
    rank: int
    split: Split
    #: address of the rendezvous
    head_address: str
    #: port of the rendezvous
    master_port: int
    #: this member's address on the fabric
    address: str
    #: this member's interfaces on the fabric
    interfaces: Sequence[str] = ()
    #: RDMA adapters of the interfaces
    adapters: Sequence[str] = ()
    #: the member logs how the members are connected
    traced: bool = False


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Additional settings of one member, on top of its recipe."""

    #: flags of the engine, by canonical name; None removes a flag of the recipe
    flags: Mapping[str, Any] = field(default_factory=dict)
    #: environment variables of the container
    env: Mapping[str, str] = field(default_factory=dict)
    #: container options by their recipe keys; lists and mappings are added to the recipe's, other values replace them
    options: Mapping[str, Any] = field(default_factory=dict)
    #: minimum timeout for stopping the container, in seconds
    stop_timeout_s: int = 0


class MemberLog(Protocol):
    """The last start that a member's log records."""

    @property
    def rank(self) -> int | None:
        """The rank assigned by the group; None until the group exists."""

    @property
    def world_size(self) -> int | None:
        """The number of ranks in the group; None until it exists."""

    @property
    def transport(self) -> str:
        """The transport between the members: rdma, sockets, gloo or unknown."""

    @property
    def stage(self) -> str:
        """The stage that the start has reached."""

    @property
    def failure(self) -> str:
        """The reason why the member exited, as a sentence; empty if the log contains none."""


class Parallel(Protocol):
    """One engine's support for serving a model from several hosts."""

    @property
    def MASTER_PORT(self) -> int:
        """The default port of the rendezvous."""

    @property
    def RESERVED_FLAGS(self) -> Mapping[str, str]:
        """Flags that a recipe must not set, each with the recipe key that sets it, or the reason why no key does."""

    @property
    def VARIABLES(self) -> Sequence[str]:
        """Environment variables that a cluster sets for each member."""

    @property
    def TRACE(self) -> str:
        """The environment variable that makes a member log how the members are connected."""

    def member_settings(self, member: ClusterMember) -> MemberSettings:
        """Return a member's additional settings."""

    def check(
        self, split: Split, flags: Mapping[str, Any], model: Mapping[str, Any], version: Version | None
    ) -> list[Finding]:
        """Return the findings about a split of a model, errors first. model: the config as returned by `Advice.relevant_config`."""

    def is_peer_failure(self, failure: str) -> bool:
        """Return True if a failure was caused by another member, whose log has the details."""
