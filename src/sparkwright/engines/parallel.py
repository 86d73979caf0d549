"""One model over several hosts, as one engine does it: how a model is split, and what each member is started with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from packaging.version import Version

from sparkwright.engines.findings import Finding
from sparkwright.engines.log.text import Text


@dataclass(frozen=True, slots=True)
class Split:
    """How a model is split: tensor: each layer over so many hosts. pipeline: the layers over so many hosts, one after the other."""

    tensor: int = 1
    pipeline: int = 1

    @property
    def hosts(self) -> int:
        """How many hosts it takes."""
        return self.tensor * self.pipeline


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """One member's place in a cluster.

    rank: 0 for the head. address, interfaces, adapters: its own on the fabric; the interfaces' RDMA adapters by name. head_address,
    master_port: where the members meet. traced: whether its log is to tell how the members are connected.
    """

    rank: int
    split: Split
    head_address: str
    master_port: int
    address: str
    interfaces: Sequence[str] = ()
    adapters: Sequence[str] = ()
    traced: bool = False


@dataclass(frozen=True, slots=True)
class Share:
    """What one member is started with beside its recipe.

    flags: of the engine, under their own names; None takes one out of the recipe's. env: of the container. options: of the container, by their names in a recipe;
    lists and mappings are added to the recipe's, other values replace them. stop_timeout_s: what a stop takes at least, seconds.
    """

    flags: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    stop_timeout_s: int = 0


class MemberLog(Protocol):
    """What the last start in a member's log tells."""

    @property
    def rank(self) -> int | None:
        """Its rank, as the group gave it; None until the group exists."""

    @property
    def world_size(self) -> int | None:
        """How many ranks the group has; None until it exists."""

    @property
    def transport(self) -> str:
        """What carries the members' traffic: rdma, sockets, gloo; unknown where the log does not tell."""

    @property
    def stage(self) -> str:
        """How far it is."""

    @property
    def failure(self) -> str:
        """Why it ended, one sentence; empty where nothing says that it did."""


class Parallel(Protocol):
    """How an engine serves one model from several hosts."""

    @property
    def MASTER_PORT(self) -> int:
        """The port where its members meet unless something else is said."""

    @property
    def SET_BY(self) -> Mapping[str, str]:
        """Flags that no recipe sets itself, each with the key that sets it, or with why there is none."""

    @property
    def VARIABLES(self) -> Sequence[str]:
        """Environment variables that a cluster sets for each member itself."""

    @property
    def TRACE(self) -> str:
        """The environment variable that makes a member's log tell how the members are connected."""

    def share(self, member: ClusterMember) -> Share:
        """What this member is started with."""

    def check(
        self, split: Split, flags: Mapping[str, Any], model: Mapping[str, Any], version: Version | None
    ) -> list[Finding]:
        """What is wrong with this split of this model, errors first. model: as `Advice.essence` keeps it."""

    def member(self, text: Text) -> MemberLog:
        """What a member's log tells, text or file or pieces of it."""

    def of_another(self, failure: str) -> bool:
        """Whether a member that failed so ended because of another, whose log tells more."""
