"""Labels of a container: its engine, and its rank in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from sparkwright.engines import engine
from sparkwright.engines.engine import Engine
from sparkwright.host.containers import containers
from sparkwright.host.module import Context
from sparkwright.protocol.container import (
    CLUSTER_LABEL,
    MEMBERS_LABEL,
    RANK_LABEL,
)

if TYPE_CHECKING:
    import docker


def engine_of_container(inspected: Mapping[str, Any] | None) -> Engine:
    """Return the engine of an inspected container; the default engine if there is no container."""
    return engine.from_labels(((inspected or {}).get("Config") or {}).get("Labels"))


def engine_by_name(client: docker.DockerClient, name: str) -> Engine:
    """Return the engine of the container with this name; the default engine if there is no container."""
    return engine_of_container(containers.inspect(client, name))


def engine_of_spec(spec: Mapping[str, Any] | None) -> Engine:
    """Return the engine of a spec stored in a plan or a verified state."""
    return engine.from_labels((spec or {}).get("labels"))


def engine_at(context: Context, base_url: str) -> Engine:
    """Return the engine of the running container that uses a URL's port on this host; the default engine if there is none."""
    try:
        port = urlsplit(base_url).port
        client = context.docker()
        rows = client.api.containers()
        for row in rows:
            if any(published_port.get("PublicPort") == port for published_port in row.get("Ports") or ()):
                return engine.from_labels(row.get("Labels"))
        if any((row.get("HostConfig") or {}).get("NetworkMode") == "host" for row in rows):
            return engine_of_container(containers.find_by_port(client, port))
    except Exception:  # raised by docker or requests; the server itself can still be queried
        pass
    return engine.get_engine(engine.DEFAULT_ENGINE)


class Membership(NamedTuple):
    """A container's membership in a cluster, from its labels. A single server has no cluster and no members."""

    cluster: str = ""
    rank: int = 0
    #: host names, in the order of ranks
    members: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON types, for a module's result."""
        return {**self._asdict(), "members": list(self.members)}

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.cluster} ({', '.join(self.members)})" if self.cluster else "a single server"


def membership_of_labels(labels: Mapping[str, Any] | None) -> Membership:
    """Return the membership from the labels of a container or a spec; an empty one if they are missing or invalid."""
    values = {name: str(value) for name, value in (labels or {}).items()}
    members = tuple(word for word in values.get(MEMBERS_LABEL, "").split(",") if word)
    rank = values.get(RANK_LABEL, "")
    if not values.get(CLUSTER_LABEL) or not rank.isdecimal() or int(rank) >= len(members):
        return Membership()
    return Membership(values[CLUSTER_LABEL], int(rank), members)


def membership_of(inspected: Mapping[str, Any]) -> Membership:
    """Return the membership of an inspected container, from inspect data that may be empty."""
    return membership_of_labels((inspected.get("Config") or {}).get("Labels"))
