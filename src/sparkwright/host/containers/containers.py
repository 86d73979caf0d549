"""Common queries about containers, and the Docker Engine's refusals as sentences."""

from __future__ import annotations

import re
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sparkwright import shell
from sparkwright.errors import Failed
from sparkwright.host.containers import docker_client, inspection, port_forwarders
from sparkwright.protocol.container import INTERIM as INTERIM
from sparkwright.protocol.container import PREVIOUS as PREVIOUS
from sparkwright.protocol.container import RANK_LABEL
from sparkwright.protocol.container import REPLACEMENT as REPLACEMENT
from sparkwright.visible import one_line

if TYPE_CHECKING:
    import docker

    from sparkwright.host.module import Context

#: Docker's refusal if a user-defined network still has an endpoint of this name (moby, libnetwork)
ENDPOINT = re.compile(r"endpoint with name ([\w.-]{1,128}) already exists in network ([\w.-]{1,128})", re.ASCII)
#: prefix of `who_listens` for another simulated Spark on this machine; its folder follows
SANDBOX = "the sandbox in"


def inspect(client: docker.DockerClient, name: str) -> dict[str, Any] | None:
    """Return the inspect of a container, or None if there is none of this name."""
    try:
        return inspection.container(client.api.inspect_container(name))
    except docker_client.errors().NotFound:
        return None


def image_of(client: docker.DockerClient, container: dict[str, Any]) -> dict[str, Any]:
    """Return the inspect of a container's image; empty if the image is gone."""
    api: Any = client.api
    try:
        return inspection.image(api.inspect_image(container["Image"]))
    except docker_client.errors().NotFound:
        return {}


def running_rows(context: Context) -> list[dict[str, Any]]:
    """Return a row for each running container; empty if the engine does not answer (it restarts, or is broken)."""
    try:
        rows: list[dict[str, Any]] = context.docker().api.containers()
    except Exception:
        return []
    return rows


def running(client: docker.DockerClient, name: str) -> bool:
    """Return True if a container of this name is running, or restarting in a crash loop."""
    found = inspect(client, name)
    return found is not None and found["State"]["Status"] in ("running", "restarting")


def identity(container: dict[str, Any]) -> dict[str, Any]:
    """Return the fields to record before a container is stopped: id, name, policy, running."""
    policy = container["HostConfig"]["RestartPolicy"]["Name"] or "no"
    name = container["Name"].lstrip("/")
    return {"id": container["Id"], "name": name, "policy": policy, "running": container["State"]["Running"]}


def started_s(container: dict[str, Any]) -> float:
    """Return the time of the container's last start, seconds since the epoch; one day after the epoch if it never started."""
    return moment(str(container["State"].get("StartedAt") or "")) or 86400.0


def moment(text: str) -> float | None:
    """Parse a time from Docker into seconds since the epoch; None if it is invalid, or year 1, which means never."""
    try:
        found = datetime.fromisoformat(text[:26].rstrip("Z")).replace(tzinfo=UTC)
    except ValueError:
        return None
    return found.timestamp() if found.year > 1970 else None


def url_of(container: dict[str, Any]) -> str:
    """Return the URL of a container's server on this host; empty without a port.

    On the host's network Docker publishes no port, but keeps the binding that the container was created with.
    """
    for rows in (container["HostConfig"].get("PortBindings") or {}).values():
        for row in rows or ():
            address = row.get("HostIp") or "0.0.0.0"
            host = "127.0.0.1" if address in ("0.0.0.0", "::") else f"[{address}]" if ":" in address else address
            return f"http://{host}:{row['HostPort']}"
    return ""


def publishing(client: docker.DockerClient, port: int | None) -> dict[str, Any] | None:
    """Return the inspect of the container that has this port of the host.

    Published, on the host's own network, or at its next start, as in a crash loop.
    """
    for row in client.api.containers():
        if any(item.get("PublicPort") == port for item in row.get("Ports") or ()):
            return inspect(client, row["Id"])
        if (row.get("HostConfig") or {}).get("NetworkMode") == "host" or row.get("State") == "restarting":
            found = inspect(client, row["Id"])
            if found is not None and publishes(found, port):
                return found
    return None


def publishes(container: dict[str, Any], port: int | None) -> bool:
    """Return True if the container was created with a binding to this port of the host."""
    bindings = (container["HostConfig"].get("PortBindings") or {}).values()
    return any(row["HostPort"] == str(port) for rows in bindings for row in rows or ())


#: prefix of `who_listens` for a container
CONTAINER = "container "


def who_listens(client: docker.DockerClient, port: int) -> str:
    """Return the container or process that holds a TCP port of the host, in words; empty if none is visible."""
    holder = publishing(client, port)
    process = listening_process(port) if holder is None or not _published(holder) else ""
    if process and holder is None and (forwarder := port_forwarders.of_port(port)):
        return f"{forwarder}, {_left_by(client, port)}"
    return f"{CONTAINER}{holder['Name'].lstrip('/')}" if holder and (process or _published(holder)) else process


def _left_by(client: docker.DockerClient, port: int) -> str:
    """Return the container that a forwarder of Docker was started for, in words: no running container publishes this port.

    A container that was created and never ran is the likeliest: power was lost while it was starting.
    """
    found = (inspect(client, row["Id"]) for row in client.api.containers(all=True))
    made = [container for container in found if container is not None and publishes(container, port)]
    never_ran = [container for container in made if container["State"]["Status"] == "created"]
    names = [str(container["Name"]).lstrip("/") for container in never_ran or made]
    return f"which was for {' or '.join(names)} and serves nobody" if names else "which serves nobody"


def _published(container: dict[str, Any]) -> bool:
    """Return True if the engine itself holds the container's ports, or will again; on the host's network the server does."""
    return bool(container["HostConfig"].get("NetworkMode") != "host" or container["State"].get("Restarting"))


def listening_process(port: int) -> str:
    """Return the process that listens on a TCP port of this host, in words; empty if there is none."""
    import psutil

    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        connections = []
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if not connection.pid:
                return "a process of another user"
            try:
                process = psutil.Process(connection.pid)
                who = f"(pid {connection.pid}, user {process.username()})"
                return f"{_sandbox_of(process.cmdline()) or process.name()} {who}"
            except psutil.Error:
                return f"pid {connection.pid}"
    return "a process of another user" if _accepts(port) else ""


def _sandbox_of(words: list[str]) -> str:
    """Return the other sandbox whose process has this command line, in words; empty if it is not a sandbox."""
    if words[-4:-1] != ["-m", "sparkwright.sandbox", "serve"]:
        return ""
    return f"{SANDBOX} {one_line(words[-1])}"


def to_free_a_port(holder: str, another: str = "`serve_port:` in the host's file", *, ours: bool = False) -> str:
    """Return the fix for a port that is taken.

    Args:
        holder: who holds it, as returned by `who_listens`.
        another: the setting that selects another port.
        ours: the holder is a container of sparkwright, which a deploy may replace.
    """
    if holder.startswith(port_forwarders.TITLE):
        return f"{port_forwarders.FIX}; nothing else frees it."
    stop = "Run `invoke sandbox.down` in its project" if holder.startswith(SANDBOX) else "Stop that"
    if holder.startswith(CONTAINER):
        name = holder.removeprefix(CONTAINER)
        stop = f"On the host: `docker stop {name}`"
        stop += f". To replace it, name the recipe's container like it (`container.name: {name}`)" if ours else ""
    return f"{stop}, or use another port with {another}."


def to_stop_a_rank(name: str) -> str:
    """Return the fix for a rank left by an earlier start: a worker takes longer to stop than Docker's default timeout."""
    return f"On the host: `docker stop -t 30 {name}`."


def rank_of(client: docker.DockerClient, holder: str) -> str:
    """Return the container's name if a port's holder (see `who_listens`) is a rank of a cluster; else empty."""
    name = holder.removeprefix(CONTAINER)
    found = inspect(client, name) if name != holder else None
    return name if found and RANK_LABEL in (found["Config"].get("Labels") or {}) else ""


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def refused_create(error: Exception) -> Failed:
    """Return the engine's refusal to create a container as Failed, in the engine's own words."""
    message = str(getattr(error, "explanation", "") or error).strip()
    return Failed(f"Docker could not create the new container: {message.rstrip('.')}.")


def refused_start(error: Exception, client: docker.DockerClient, ports: tuple[str, ...]) -> Failed:
    """Return the engine's refusal to start a container as Failed, with the fix."""
    message = str(getattr(error, "explanation", "") or error).strip()
    if "could not select device driver" in message or "nvidia" in message.lower():
        return Failed(
            "Docker has no NVIDIA runtime.",
            fix="On the host: `sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`.",
        )
    if "port is already allocated" in message or "address already in use" in message:
        port = int(ports[0].split(":")[-2]) if ports else 0
        holder = who_listens(client, port)
        return Failed(f"port {port} is in use{f' by {holder}' if holder else ''}.", fix=to_free_a_port(holder))
    if left := ENDPOINT.search(message):
        command = shell.join(("docker", "network", "disconnect", "-f", left[2], left[1]))
        why = f"Docker still has {left[1]} in its network {left[2]}, from a start that was cut off."
        return Failed(why, fix=f"On the host: `{command}`.")
    return Failed(f"Docker could not start the container: {message}")
