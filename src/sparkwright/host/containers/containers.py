"""Common queries about containers, and error messages for the Docker Engine's refusals."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sparkwright import shell
from sparkwright.errors import Failed
from sparkwright.host.containers import docker_client, inspection, port_forwarders
from sparkwright.protocol.container import INTERIM_SUFFIX as INTERIM_SUFFIX
from sparkwright.protocol.container import PREVIOUS_SUFFIX as PREVIOUS_SUFFIX
from sparkwright.protocol.container import RANK_LABEL
from sparkwright.protocol.container import REPLACEMENT_SUFFIX as REPLACEMENT_SUFFIX
from sparkwright.visible import one_line

if TYPE_CHECKING:
    import docker

    from sparkwright.host.module import Context

#: Docker's refusal if a user-defined network still has an endpoint of this name (moby, libnetwork)
ENDPOINT_EXISTS_PATTERN = re.compile(
    r"endpoint with name ([\w.-]{1,128}) already exists in network ([\w.-]{1,128})", re.ASCII
)
#: how long after the start of a container's process Docker may set StartedAt
START_RECORD_DELAY_S = 5.0
#: prefix that `describe_port_holder` uses for a container
CONTAINER_PREFIX = "container "
#: prefix that `describe_port_holder` uses for another simulated Spark on this machine; its folder follows
SANDBOX_PREFIX = "the sandbox in"


def name_of(container: Mapping[str, Any]) -> str:
    """Return a container's current name, from its inspect data or its row in Docker's list of containers."""
    return str(container["Name"] if "Name" in container else container["Names"][0]).lstrip("/")


def inspect(client: docker.DockerClient, name: str) -> dict[str, Any] | None:
    """Return the inspect data of a container, or None if no container has this name."""
    try:
        return inspection.validate_container(client.api.inspect_container(name))
    except docker_client.errors().NotFound:
        return None


def image_of(client: docker.DockerClient, container: dict[str, Any]) -> dict[str, Any]:
    """Return the inspect data of a container's image; empty if the image is gone."""
    api: Any = client.api
    try:
        return inspection.validate_image(api.inspect_image(container["Image"]))
    except docker_client.errors().NotFound:
        return {}


def list_running(context: Context) -> list[dict[str, Any]]:
    """Return a row for each running container; empty if Docker does not answer (it is restarting or broken)."""
    try:
        return list(context.docker().api.containers())
    except Exception:
        return []


def is_running(client: docker.DockerClient, name: str) -> bool:
    """Return True if a container of this name is running, or restarting in a crash loop."""
    container = inspect(client, name)
    return container is not None and container["State"]["Status"] in ("running", "restarting")


def started_s(container: dict[str, Any]) -> float:
    """Return the time of the container's last start, seconds since the epoch; one day after the epoch if it never started."""
    return parse_time(str(container["State"].get("StartedAt") or "")) or 86400.0


def log_start_s(container: dict[str, Any]) -> float | None:
    """Return the time after which a container's log belongs to its last start, seconds since the epoch; None for the whole log.

    Docker sets StartedAt after the container's process has started: on a busy host more than a second later (seen with 20.10),
    after a server's first lines. A server that is running began after the end of its previous start.
    """
    state = container["State"]
    started_s, ended_s = (parse_time(str(state.get(name) or "")) for name in ("StartedAt", "FinishedAt"))
    if state["Running"] and state["Status"] != "restarting" and (ended_s or 0) <= (started_s or 0):
        return ended_s
    return None if started_s is None else max(0.0, started_s - START_RECORD_DELAY_S)


def parse_time(text: str) -> float | None:
    """Parse a time from Docker into seconds since the epoch; None if it is invalid or in year 1, which means never."""
    try:
        parsed = datetime.fromisoformat(text[:26].rstrip("Z")).replace(tzinfo=UTC)
    except ValueError:
        return None
    return parsed.timestamp() if parsed.year > 1970 else None


def url_of(container: dict[str, Any]) -> str:
    """Return the URL of a container's server on this host; empty without a port.

    On the host's network, Docker publishes no port but keeps the binding that the container was created with.
    """
    for rows in (container["HostConfig"].get("PortBindings") or {}).values():
        for row in rows or ():
            address = row.get("HostIp") or "0.0.0.0"
            host = "127.0.0.1" if address in ("0.0.0.0", "::") else f"[{address}]" if ":" in address else address
            return f"http://{host}:{row['HostPort']}"
    return ""


def find_by_port(client: docker.DockerClient, port: int | None) -> dict[str, Any] | None:
    """Return the inspect data of the container that publishes a port of the host, or listens on it in the host's network.

    A container in a crash loop is included: it takes the port at its next start.
    """
    for row in client.api.containers():
        if any(published_port.get("PublicPort") == port for published_port in row.get("Ports") or ()):
            return inspect(client, row["Id"])
        if (row.get("HostConfig") or {}).get("NetworkMode") == "host" or row.get("State") == "restarting":
            container = inspect(client, row["Id"])
            if container is not None and has_port_binding(container, port):
                return container
    return None


def has_port_binding(container: dict[str, Any], port: int | None) -> bool:
    """Return True if the container was created with a binding to this port of the host."""
    bindings = (container["HostConfig"].get("PortBindings") or {}).values()
    return any(row["HostPort"] == str(port) for rows in bindings for row in rows or ())


def describe_port_holder(client: docker.DockerClient, port: int) -> str:
    """Describe the container or process that holds a TCP port of the host; empty if none is visible."""
    holder = find_by_port(client, port)
    process = describe_listening_process(port) if holder is None or not _docker_holds_ports(holder) else ""
    if process and holder is None and (forwarder := port_forwarders.find_by_port(port)):
        return f"{forwarder}, {_describe_forwarder_origin(client, port)}"
    if holder and (process or _docker_holds_ports(holder)):
        return f"{CONTAINER_PREFIX}{holder['Name'].lstrip('/')}"
    return process


def _describe_forwarder_origin(client: docker.DockerClient, port: int) -> str:
    """Describe the container for which Docker started an orphaned port forwarder.

    Most likely the container was created and never ran, because power was lost while it was starting.
    """
    inspected_containers = (inspect(client, row["Id"]) for row in client.api.containers(all=True))
    publishers = [
        container for container in inspected_containers if container is not None and has_port_binding(container, port)
    ]
    never_started = [container for container in publishers if container["State"]["Status"] == "created"]
    names = [name_of(container) for container in never_started or publishers]
    return (
        f"which was started for {' or '.join(names)} and belongs to no container"
        if names
        else "which belongs to no container"
    )


def _docker_holds_ports(container: dict[str, Any]) -> bool:
    """Return True if Docker holds the container's ports, now or after a restart. On the host's network, the server holds them."""
    return bool(container["HostConfig"].get("NetworkMode") != "host" or container["State"].get("Restarting"))


def describe_listening_process(port: int) -> str:
    """Describe the process that listens on a TCP port of this host; empty if there is none."""
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
                owner = f"(pid {connection.pid}, user {process.username()})"
                return f"{_describe_sandbox(process.cmdline()) or process.name()} {owner}"
            except psutil.Error:
                return f"pid {connection.pid}"
    return "a process of another user" if _accepts_connections(port) else ""


def _describe_sandbox(words: list[str]) -> str:
    """Describe the sandbox with this command line; empty if it belongs to another program."""
    if words[-4:-1] != ["-m", "sparkwright.sandbox", "serve"]:
        return ""
    return f"{SANDBOX_PREFIX} {one_line(words[-1])}"


def fix_to_free_port(holder: str, setting: str = "`serve_port:` in the host's file", *, is_ours: bool = False) -> str:
    """Return the fix for a port that is taken.

    Args:
        holder: a description returned by `describe_port_holder`.
        setting: the setting that selects another port.
        is_ours: whether the holder is a container of sparkwright, which a deploy may replace.
    """
    if holder.startswith(port_forwarders.TITLE):
        return f"{port_forwarders.FIX}; nothing else frees it."
    stop_fix = "Run `invoke sandbox.down` in its project" if holder.startswith(SANDBOX_PREFIX) else "Stop it"
    if holder.startswith(CONTAINER_PREFIX):
        name = holder.removeprefix(CONTAINER_PREFIX)
        stop_fix = f"On the host: `docker stop {name}`"
        stop_fix += f". To replace it, give the recipe its container name (`container.name: {name}`)" if is_ours else ""
    return f"{stop_fix}, or use another port with {setting}."


def fix_to_stop_rank(name: str) -> str:
    """Return the fix for a rank left by an earlier start: a worker takes longer to stop than Docker's default timeout."""
    return f"On the host: `docker stop -t 30 {name}`."


def rank_container_name(client: docker.DockerClient, holder: str) -> str:
    """Return the container's name if a port's holder (see `describe_port_holder`) is a rank of a cluster; else empty."""
    name = holder.removeprefix(CONTAINER_PREFIX)
    container = inspect(client, name) if name != holder else None
    return name if container and RANK_LABEL in (container["Config"].get("Labels") or {}) else ""


def _accepts_connections(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def build_creation_error(error: Exception) -> Failed:
    """Return the error for Docker's refusal to create a container."""
    message = str(getattr(error, "explanation", "") or error).strip()
    return Failed(f"Docker could not create the new container: {message.rstrip('.')}.")


def build_start_error(error: Exception, client: docker.DockerClient, ports: tuple[str, ...]) -> Failed:
    """Return the error, with a fix, for Docker's refusal to start a container."""
    message = str(getattr(error, "explanation", "") or error).strip()
    if "could not select device driver" in message or "nvidia" in message.lower():
        return Failed(
            "Docker has no NVIDIA runtime.",
            fix="On the host: `sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`.",
        )
    if "port is already allocated" in message or "address already in use" in message:
        port = int(ports[0].split(":")[-2]) if ports else 0
        holder = describe_port_holder(client, port)
        return Failed(f"port {port} is in use{f' by {holder}' if holder else ''}.", fix=fix_to_free_port(holder))
    if match := ENDPOINT_EXISTS_PATTERN.search(message):
        command = shell.join(("docker", "network", "disconnect", "-f", match[2], match[1]))
        message = f"Docker still has {match[1]} in its network {match[2]}, from a start that was cut off."
        return Failed(message, fix=f"On the host: `{command}`.")
    return Failed(f"Docker could not start the container: {message}")
