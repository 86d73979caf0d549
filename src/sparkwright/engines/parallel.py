"""The interface to an engine that serves one model from several hosts: splits of a model, and the members' settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from packaging.version import Version

from sparkwright.engines.findings import Finding
from sparkwright.engines.log.text import LogText


@dataclass(frozen=True, slots=True)
class Split:
    """The split of a model over hosts."""

    #: number of hosts that share each layer
    tensor: int = 1
    #: number of hosts in sequence that share the layers
    pipeline: int = 1

    @property
    def hosts(self) -> int:
        """The number of hosts that the split needs."""
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """A member's place in a cluster."""

    #: 0 for the head
    rank: int
    split: Split
    #: address at which the members meet
    head_address: str
    #: port at which the members meet
    master_port: int
    #: of this member on the fabric
    address: str
    #: of this member on the fabric
    interfaces: Sequence[str] = ()
    #: names of the interfaces' RDMA adapters
    adapters: Sequence[str] = ()
    #: make its log report how the members are connected
    traced: bool = False


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """The settings with which one member is started, beyond its recipe."""

    #: of the engine, under their own names; None removes a flag of the recipe
    flags: Mapping[str, Any] = field(default_factory=dict)
    #: of the container
    env: Mapping[str, str] = field(default_factory=dict)
    #: of the container, by their names in a recipe; lists and mappings are added to the recipe's, other values replace them
    options: Mapping[str, Any] = field(default_factory=dict)
    #: minimum timeout of a stop, seconds
    stop_timeout_s: int = 0


class MemberLog(Protocol):
    """The last start in a member's log."""

    @property
    def rank(self) -> int | None:
        """The member's rank, assigned by the group; None until the group exists."""

    @property
    def world_size(self) -> int | None:
        """The number of ranks in the group; None until it exists."""

    @property
    def transport(self) -> str:
        """The transport between the members: rdma, sockets, gloo; unknown if the log does not say."""

    @property
    def stage(self) -> str:
        """The stage that the start has reached."""

    @property
    def failure(self) -> str:
        """The reason why the member ended, one sentence; empty if the log holds none."""


class Parallel(Protocol):
    """Serving one model from several hosts with one engine."""

    @property
    def MASTER_PORT(self) -> int:
        """The default port at which the members meet."""

    @property
    def SET_BY(self) -> Mapping[str, str]:
        """Flags that a recipe must not set, each with the key that sets it, or the reason why there is none."""

    @property
    def VARIABLES(self) -> Sequence[str]:
        """Environment variables that a cluster sets for each member."""

    @property
    def TRACE(self) -> str:
        """The environment variable that makes a member log how the members are connected."""

    def share(self, member: ClusterMember) -> MemberSettings:
        """Return the settings with which a member is started."""

    def check(
        self, split: Split, flags: Mapping[str, Any], model: Mapping[str, Any], version: Version | None
    ) -> list[Finding]:
        """Return the findings about this split of this model, errors first. model: as `Advice.essence` keeps it."""

    def member(self, text: LogText) -> MemberLog:
        """Read a member's log from a text, a file or pieces of text."""

    def is_peer_failure(self, failure: str) -> bool:
        """Return True if a failure was caused by another member, whose log has the details."""
