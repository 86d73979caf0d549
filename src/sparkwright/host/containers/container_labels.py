"""A container's engine and its place in a cluster, from its labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from sparkwright.engines import engine
from sparkwright.engines.engine import Engine
from sparkwright.host.containers import containers
from sparkwright.host.module import Context
from sparkwright.protocol.container import CLUSTER_LABEL, MEMBERS_LABEL, RANK_LABEL

if TYPE_CHECKING:
    import docker


def engine_of_container(inspected: Mapping[str, Any] | None) -> Engine:
    """Return the engine of an inspected container; the usual engine without one."""
    return engine.of_labels(((inspected or {}).get("Config") or {}).get("Labels"))


def engine_named(client: docker.DockerClient, name: str) -> Engine:
    """Return the engine of a container by its name; the usual engine without one."""
    return engine_of_container(containers.inspect(client, name))


def engine_of_spec(spec: Mapping[str, Any] | None) -> Engine:
    """Return the engine of a spec, as plans and verified states hold it."""
    return engine.of_labels((spec or {}).get("labels"))


def engine_at(context: Context, base_url: str) -> Engine:
    """Return the engine of the running container that publishes a URL's port on this host; the usual engine without one."""
    try:
        port = urlsplit(base_url).port
        client = context.docker()
        rows = client.api.containers()
        publishing = (row for row in rows if any(item.get("PublicPort") == port for item in row.get("Ports") or ()))
        row = next(publishing, None)
        on_host = any((item.get("HostConfig") or {}).get("NetworkMode") == "host" for item in rows)
        if row is None and on_host:
            return engine_of_container(containers.publishing(client, port))
    except Exception:  # of docker or requests: the server itself can still be queried
        return engine.of(engine.USUAL)
    return engine.of_labels(row.get("Labels") if row else None)


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


def membership_of_labels(labels: Mapping[str, Any] | None) -> Membership:
    """Return the membership in a container's or a spec's labels, which may be anyone's."""
    found = {name: str(value) for name, value in (labels or {}).items()}
    members = tuple(word for word in found.get(MEMBERS_LABEL, "").split(",") if word)
    rank = found.get(RANK_LABEL, "")
    if not found.get(CLUSTER_LABEL) or not rank.isdecimal() or int(rank) >= len(members):
        return Membership()
    return Membership(found[CLUSTER_LABEL], int(rank), members)


def membership_of(inspected: Mapping[str, Any]) -> Membership:
    """Return the membership of an inspected container; the inspect may be empty."""
    return membership_of_labels((inspected.get("Config") or {}).get("Labels"))
