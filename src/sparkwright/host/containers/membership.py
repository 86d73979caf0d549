"""A container's place in a cluster, from its labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from sparkwright.protocol.container import CLUSTER_LABEL, MEMBERS_LABEL, RANK_LABEL


class Membership(NamedTuple):
    """A member of a cluster, by its labels. A server of its own has no cluster, and is its only member."""

    cluster: str = ""
    rank: int = 0
    #: host names, in the order of ranks
    members: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON, for a module's result."""
        return {**self._asdict(), "members": list(self.members)}

    def __str__(self) -> str:
        return (
            f"rank {self.rank} of {self.cluster} ({', '.join(self.members)})" if self.cluster else "a server of its own"
        )


def of_labels(labels: Mapping[str, Any] | None) -> Membership:
    """Return the membership in a container's or a spec's labels, which may be anyone's."""
    found = {name: str(value) for name, value in (labels or {}).items()}
    members = tuple(word for word in found.get(MEMBERS_LABEL, "").split(",") if word)
    rank = found.get(RANK_LABEL, "")
    if not found.get(CLUSTER_LABEL) or not rank.isdecimal() or int(rank) >= len(members):
        return Membership()
    return Membership(found[CLUSTER_LABEL], int(rank), members)


def of_container(inspected: Mapping[str, Any]) -> Membership:
    """Return the membership of an inspected container; the inspect may be empty."""
    return of_labels((inspected.get("Config") or {}).get("Labels"))
