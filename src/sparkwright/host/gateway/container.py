"""Create, start and reload the gateway's container."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.errors import Failed, Refused
from sparkwright.gateway.listeners import MASTER_SOCKET
from sparkwright.gateway.operations import STATES_FILE
from sparkwright.gateway.render import CONFIG_FILE
from sparkwright.host.containers import container_options, containers, lifecycle, log_reader, ownership
from sparkwright.host.gateway import gateway_folders, haproxy_sockets
from sparkwright.host.images import image_names
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.module import Context
from sparkwright.host.state import write_atomically
from sparkwright.protocol.container import ContainerSpec

#: mount points in the container
FILES_MOUNT_POINT, SOCKETS_MOUNT_POINT = "/etc/gateway/files", "/etc/gateway/sockets"
#: time limit for a start, a reload or a validation, and interval of queries
START_TIMEOUT_S, POLL_S = 30, 0.05
MAX_SHOWN_LINES = 6

#: format of HAProxy's server states
STATES_VERSION = "1"
REQUIRED_COLUMNS = ("be_name", "srv_name", "srv_addr", "srv_admin_state", "srv_port")
BACKEND_COLUMN, SERVER_COLUMN, ADDRESS_COLUMN, ADMIN_STATE_COLUMN, PORT_COLUMN = REQUIRED_COLUMNS
#: bits of the administrative state: forced maintenance, forced drain (haproxy, management.txt, "show servers state")
FORCED_STATE_BITS = 0x01 | 0x08
#: bit for `disabled` in the configuration. An interim server with only this bit serves requests (tested with 2.6.12)
DISABLED_STATE_BIT = 0x04
SERVER_LINE_PATTERN = re.compile(r"server (\S+) \S+:([0-9]+)(?: |$)")


def find_current(name: str, context: Context) -> dict[str, Any]:
    """Return the inspect data of the gateway's container; empty if there is none.

    Raises:
        Refused: A container with this name exists, but is not one of our gateways.
    """
    container = containers.inspect(context.docker(), name) or {}
    identity = ownership.identify(context, container)
    if container and (identity is None or identity.role != ownership.GATEWAY):
        message = f"container {ownership.describe_holder(context, container)}, but the gateway needs its name."
        raise Refused(message, fix=ownership.fix_to_free_name(container))
    return container


def find_previous(name: str, context: Context) -> dict[str, Any]:
    """Return the inspect data of the replaced container, which is kept until the new one is verified; see `find_current`."""
    return find_current(name + containers.PREVIOUS_SUFFIX, context)


def resolve_spec(spec: dict[str, Any], context: Context) -> ContainerSpec:
    """Return the spec with the values that depend on this host: the mounted folders and a user who can read them.

    The memory limit is left out if Docker or the kernel does not support it.
    """
    info = context.docker().api.info()
    gateway = gateway_folders.state_of(context).path
    volumes = (
        f"{gateway / gateway_folders.FILES_FOLDER}:{FILES_MOUNT_POINT}:ro",
        f"{gateway / gateway_folders.SOCKETS_FOLDER}:{SOCKETS_MOUNT_POINT}",
    )
    is_rootless = any("name=rootless" in option for option in info.get("SecurityOptions") or ())
    user = "0:0" if is_rootless else f"{os.getuid()}:{os.getgid()}"  # root in a rootless container is this user
    resolved_spec = replace(ContainerSpec.from_json(spec), user=user, volumes=volumes)
    return resolved_spec if info.get("MemoryLimit", True) else replace(resolved_spec, memory="")


def validate_files(spec: dict[str, Any], files: dict[str, str], context: Context) -> None:
    """Validate these files with the pinned HAProxy, in a temporary folder. Raises Failed with HAProxy's message."""
    folder = gateway_folders.folder(context, gateway_folders.CANDIDATE_FOLDER)
    client, container_id = context.docker(), ""
    gateway_folders.write_files(folder, files)
    volumes, command = (f"{folder}:{FILES_MOUNT_POINT}:ro",), ("-c", "-f", CONFIG_FILE)
    validation_spec = replace(resolve_spec(spec, context), volumes=volumes, ports=(), command=command, network="none")
    try:
        container_id = _create(validation_spec, context, ownership.HELPER)
        lifecycle.start(context, container_id)
        code = client.api.wait(container_id, timeout=START_TIMEOUT_S)["StatusCode"]
        lines = log_reader.read_last_lines(client, container_id, 40)
    finally:
        if container_id:
            lifecycle.force_remove(context, container_id)
        gateway_folders.remove_folder(folder)
    if code != 0:
        raise Failed(f"HAProxy rejected the configuration: {_format_alerts(lines)}", fix="Nothing was changed.")


def create(spec: ContainerSpec, context: Context) -> str:
    """Create the gateway's container. Returns its id. Raises Failed if the image is missing or has not been verified."""
    return _create(spec, context, ownership.GATEWAY, spec.name)


def _create(spec: ContainerSpec, context: Context, role: str, name: str = "") -> str:
    api: Any = context.docker().api
    image = image_names.find(api, spec.image, spec.image_ids, machine_platform(context.machine))
    if not image:
        raise Failed(
            f"{spec.image} is not on the host, or has not been verified.", fix="`invoke gateway.deploy` pulls it."
        )
    body = container_options.build_create_body(spec)
    body["Image"] = image_names.name_of(api, spec.image, image["Id"])
    return lifecycle.create(context, body, role, server=name, name=name)


def start(container_id: str, spec: ContainerSpec, context: Context) -> None:
    """Start a container created from this spec. Raises Failed; if a port is in use, it names the program or container."""
    from docker.errors import APIError

    client = context.docker()
    try:
        lifecycle.start(context, container_id)
    except APIError as error:
        raise containers.build_start_error(error, client, spec.ports) from None


def reload(context: Context) -> None:
    """Reload the files of a running HAProxy: new requests use them, running streams finish in the old process.

    The command is sent to HAProxy's socket, not as a signal: Docker treats a forwarded signal as a manual stop, after which the
    restart policy `unless-stopped` no longer restarts the container.
    """
    folders = gateway_folders.current_folders(gateway_folders.state_of(context))
    save_states(folders.sockets, folders.files, gateway_folders.read_files(folders.files).get(CONFIG_FILE, ""))
    haproxy_sockets.send_command(folders.sockets, "reload", MASTER_SOCKET)


def wait_for_running(name: str, digest: str, context: Context) -> None:
    """Wait until HAProxy runs with the files of this digest. Raises Failed with its last output."""
    folders = gateway_folders.current_folders(gateway_folders.state_of(context))
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while haproxy_sockets.running_digest(folders.sockets) != digest:
        container = containers.inspect(context.docker(), name)
        if container is None or not container["State"]["Running"] or time.monotonic() > deadline_s:
            lines = log_reader.read_last_lines(context.docker(), name, 40) if container else []
            raise Failed(f"HAProxy is not running with the new configuration: {_format_alerts(lines)}")
        time.sleep(POLL_S)
    clear_states(folders.files)


def _format_alerts(lines: list[str]) -> str:
    """Return HAProxy's alerts; if there are none, the last lines of its output."""
    output_lines = [line.strip() for line in lines if line.strip()]
    alerts = [line for line in output_lines if "[ALERT]" in line] or output_lines[-MAX_SHOWN_LINES:]
    return " ".join(alerts[:MAX_SHOWN_LINES]) or "it printed nothing."


# The file with the server states that must survive a reload or restart of HAProxy: drained servers and serving interim servers.
#
# HAProxy prefers a port in this file to the one in its configuration, so the file lists only these servers, with their ports in
# the new configuration. It is emptied after the reload: an outdated state would drain servers that have been returned since.


def save_states(sockets: Path, files: Path, config: str) -> None:
    """Write the states of the running HAProxy's drained and interim servers for the next process.

    Args:
        sockets: the folder of the running HAProxy's sockets.
        files: the folder of the files that the next process reads.
        config: the next process's configuration.
    """
    output = haproxy_sockets.send_command(sockets, "show servers state")
    _write_states(files, list(_select_states(output, _parse_ports(config))))


def clear_states(files: Path) -> None:
    """Empty the file of server states."""
    _write_states(files, [])


def _write_states(files: Path, lines: list[str]) -> None:
    write_atomically(files / STATES_FILE, "".join(f"{line}\n" for line in (STATES_VERSION, *lines)).encode())


def _select_states(output: str, ports: dict[tuple[str, str], str]) -> Iterator[str]:
    """Yield the header and the rows of drained and interim servers, with their new ports. Removed servers are left out."""
    version, _, rest = output.partition("\n")
    header, *rows = rest.splitlines() or [""]
    names = header.removeprefix("# ").split()
    if version != STATES_VERSION or not {*REQUIRED_COLUMNS} <= {*names}:
        return
    yield header
    for row in rows:
        columns = dict(zip(names, row.split(), strict=False))
        port = ports.get((columns.get(BACKEND_COLUMN, ""), columns.get(SERVER_COLUMN, "")), "")
        if (
            port
            and columns.get(ADMIN_STATE_COLUMN, "").isdecimal()
            and int(columns[ADMIN_STATE_COLUMN]) & (FORCED_STATE_BITS | DISABLED_STATE_BIT)
        ):
            yield " ".join({**columns, ADDRESS_COLUMN: "-", PORT_COLUMN: port}.values())


def _parse_ports(config: str) -> dict[tuple[str, str], str]:
    """Return the port of each server in a configuration, by backend and name."""
    ports, backend = dict[tuple[str, str], str](), ""
    for line in map(str.strip, config.splitlines()):
        if line.startswith("backend "):
            backend = line.removeprefix("backend ")
        elif server := SERVER_LINE_PATTERN.match(line):
            ports[backend, server[1]] = server[2]
    return ports
