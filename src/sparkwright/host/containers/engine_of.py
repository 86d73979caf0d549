"""The engine that a container runs, from its labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sparkwright.engines import engine
from sparkwright.engines.engine import Engine
from sparkwright.host.containers import containers
from sparkwright.host.module import Context

if TYPE_CHECKING:
    import docker


def of_container(inspected: Mapping[str, Any] | None) -> Engine:
    """Return the engine of an inspected container; the usual engine without one."""
    return engine.of_labels(((inspected or {}).get("Config") or {}).get("Labels"))


def named(client: docker.DockerClient, name: str) -> Engine:
    """Return the engine of a container by its name; the usual engine without one."""
    return of_container(containers.inspect(client, name))


def of_spec(spec: Mapping[str, Any] | None) -> Engine:
    """Return the engine of a spec, as plans and verified states hold it."""
    return engine.of_labels((spec or {}).get("labels"))


def at(context: Context, base_url: str) -> Engine:
    """Return the engine of the running container that publishes a URL's port on this host; the usual engine without one."""
    try:
        port = urlsplit(base_url).port
        client = context.docker()
        rows = client.api.containers()
        publishing = (row for row in rows if any(item.get("PublicPort") == port for item in row.get("Ports") or ()))
        row = next(publishing, None)
        on_host = any((item.get("HostConfig") or {}).get("NetworkMode") == "host" for item in rows)
        if row is None and on_host:
            return of_container(containers.publishing(client, port))
    except Exception:  # of docker or requests: the server itself can still be queried
        return engine.of(engine.USUAL)
    return engine.of_labels(row.get("Labels") if row else None)
