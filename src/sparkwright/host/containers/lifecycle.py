"""Every change to a container: create, start, stop, rename, remove, connect, and set the restart policy.

No other module sends these requests to Docker (tests/modules/test_ownership.py). A container is created with labels for its
owner and its role; every later change is made by id, after reading those labels again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sparkwright.errors import Failed
from sparkwright.host.containers import (
    containers,
    docker_client,
    inspection,
    mount_sources,
    ownership,
)

if TYPE_CHECKING:
    from sparkwright.host.module import Context

#: how long to retry a change of the restart policy while the container is exiting, in seconds
POLICY_UPDATE_TIMEOUT_S = 5.0
#: how long Docker may still report a stopped container as running, in seconds
STOP_REPORT_TIMEOUT_S = 10.0


def create(context: Context, config: Mapping[str, Any], role: str, *, server: str = "", name: str = "") -> str:
    """Create a container and return its id.

    Args:
        config: the body of Docker's `POST /containers/create`.
        role: the container's role; see `ownership`.
        server: the server's container name; empty for a helper.
        name: the container's name; if empty, Docker chooses one.
    """
    labels = {**(config.get("Labels") or {}), **ownership.build_labels(context, role, server)}
    container_id: str = _api(context).create_container_from_config({**config, "Labels": labels}, name or None)["Id"]
    return container_id


def start(context: Context, container_id: str) -> None:
    """Start a container.

    Raises docker's APIError, and Refused if the container is not ours or could have replaced its mount sources.
    """
    container = _inspect(context, container_id)
    mount_sources.refuse_unsafe_container(context, container)
    _api(context).start(ownership.require_ours(context, container))


def stop(context: Context, container: Mapping[str, Any], timeout_s: int) -> None:
    """Stop a container gracefully; Docker kills it after timeout_s. Returns once its processes have exited.

    Raises Failed if it keeps running, and Refused if it is not ours.
    """
    _stop(context, ownership.require_ours(context, _inspect(context, container["Id"])), timeout_s)


def stop_foreign(context: Context, container_id: str, timeout_s: int) -> None:
    """Stop a container that is not ours, at the request of a host variable (`ollama: stop`). It will be started again later."""
    _stop(context, container_id, timeout_s)


def start_foreign(context: Context, container_id: str) -> None:
    """Start a container that `stop_foreign` stopped."""
    _api(context).start(container_id)


def remove(context: Context, container: Mapping[str, Any], timeout_s: int) -> None:
    """Stop a container gracefully, so that the driver releases its memory cleanly, and remove it if it still exists.

    Raises Refused if it is not ours.
    """
    try:
        _stop(context, ownership.require_ours(context, _inspect(context, container["Id"])), timeout_s)
        force_remove(context, container["Id"])
    except docker_client.errors().NotFound:
        return


def force_remove(context: Context, container_id: str) -> None:
    """Remove a container if it exists, killing it if it runs. Raises Refused if it is not ours."""
    container = containers.inspect(context.docker(), container_id)
    if container is None:
        return
    try:
        _api(context).remove_container(ownership.require_ours(context, container), force=True)
    except docker_client.errors().NotFound:
        return


def rename(context: Context, container: Mapping[str, Any], name: str) -> None:
    """Rename a container. Raises Refused if it is not ours."""
    _api(context).rename(ownership.require_ours(context, _inspect(context, container["Id"])), name)


def require_running(container: Mapping[str, Any] | None, name: str) -> None:
    """Raise Failed if a container does not exist or is not running. container: Docker's inspection; None or empty without one."""
    if not container or not container["State"]["Running"]:
        raise Failed(f"container {name} is no longer running.", fix=f"On the host: `docker logs --tail 50 {name}`.")


def set_policy(context: Context, container: Mapping[str, Any], policy: str) -> None:
    """Change the restart policy of a container, running or not. Raises Refused if it is not ours.

    Docker refuses while the container is exiting (20.10: "Cannot update container ID: cannot update a stopped container",
    "... ttrpc: closed"); the request is repeated.
    """
    from docker.errors import APIError

    container_id = ownership.require_ours(context, _inspect(context, container["Id"]))
    deadline_s = time.monotonic() + POLICY_UPDATE_TIMEOUT_S
    while True:
        try:
            _api(context).update_container(container_id, restart_policy={"Name": policy, "MaximumRetryCount": 0})
            return
        except APIError as error:
            if "Cannot update container" not in str(error) or time.monotonic() > deadline_s:
                raise
        time.sleep(0.05)


def connect(context: Context, container_id: str, network: str, aliases: list[str] | None) -> None:
    """Connect a container to another network. Raises Refused if it is not ours."""
    own_id = ownership.require_ours(context, _inspect(context, container_id))
    _api(context).connect_container_to_network(own_id, network, aliases=aliases)


def _stop(context: Context, container_id: str, timeout_s: int) -> None:
    _api(context).stop(container_id, timeout=timeout_s)
    deadline_s = time.monotonic() + STOP_REPORT_TIMEOUT_S
    while (container := containers.inspect(context.docker(), container_id)) and container["State"]["Running"]:
        if time.monotonic() > deadline_s:
            name = containers.name_of(container)
            raise Failed(f"container {name} did not stop.", fix=f"On the host: `docker kill {name}`.")
        time.sleep(0.1)


def _inspect(context: Context, container_id: str) -> dict[str, Any]:
    """Inspect a container. Raises docker's NotFound if it is gone."""
    container: dict[str, Any] = inspection.validate_container(_api(context).inspect_container(container_id))
    return container


def _api(context: Context) -> Any:
    return context.docker().api
