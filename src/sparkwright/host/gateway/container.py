"""The gateway's container: creating, starting and reloading it."""

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
from sparkwright.host.containers import (
    container_options,
    containers,
    lifecycle,
    log_reader,
    ownership,
)
from sparkwright.host.gateway import gateway_folders, haproxy_sockets
from sparkwright.host.images import image_names
from sparkwright.host.images.image_names import machine_platform
from sparkwright.host.module import Context
from sparkwright.host.state import write_atomically
from sparkwright.protocol.container import ContainerSpec

#: the folders of its files and of its sockets in the container
FILES_INSIDE, SOCKETS_INSIDE = "/etc/gateway/files", "/etc/gateway/sockets"
#: how long a start, a reload or a check may take, seconds
START_S, POLL_S = 30, 0.05
SHOWN_LINES = 6


def find_current(name: str, context: Context) -> dict[str, Any]:
    """Return the inspect of the gateway; empty if there is none. Raises Refused if another container has its name."""
    container = containers.inspect(context.docker(), name) or {}
    if container and not _is_gateway(context, container):
        why = f"container {ownership.describe_holder(context, container)}, and the gateway needs its name."
        raise Refused(why, fix=ownership.fix_to_free_name(container))
    return container


def find_previous(name: str, context: Context) -> dict[str, Any]:
    """Return the inspect of the gateway that was stopped and kept; empty if there is none. Raises Refused like `find_current`."""
    return find_current(name + containers.PREVIOUS_SUFFIX, context)


def _is_gateway(context: Context, container: dict[str, Any]) -> bool:
    identity = ownership.identify(context, container)
    return identity is not None and identity.role == ownership.GATEWAY


def resolve_spec(spec: dict[str, Any], context: Context) -> ContainerSpec:
    """Return the spec for this host: with its folders, and this user, who alone can read them.

    The memory limit is dropped if the engine or its kernel does not support one.
    """
    info = context.docker().api.info()
    gateway = gateway_folders.state_of(context).path
    volumes = (
        f"{gateway / gateway_folders.FILES}:{FILES_INSIDE}:ro",
        f"{gateway / gateway_folders.SOCKETS}:{SOCKETS_INSIDE}",
    )
    resolved_spec = replace(ContainerSpec.from_json(spec), user=_user(info), volumes=volumes)
    return resolved_spec if info.get("MemoryLimit", True) else replace(resolved_spec, memory="")


def _user(info: dict[str, Any]) -> str:
    """Return the container's user that can read the files: this user, or root in a rootless engine."""
    rootless = any("name=rootless" in option for option in info.get("SecurityOptions") or ())
    return "0:0" if rootless else f"{os.getuid()}:{os.getgid()}"


def validate_files(spec: dict[str, Any], files: dict[str, str], context: Context) -> None:
    """Have the pinned HAProxy validate these files. Raises Failed with its message; nothing on the host is changed."""
    folder, client, container_id = gateway_folders.folder(context, gateway_folders.CANDIDATE), context.docker(), ""
    gateway_folders.write_files(folder, files)
    volumes, command = (f"{folder}:{FILES_INSIDE}:ro",), ("-c", "-f", CONFIG_FILE)
    spec_of_check = replace(resolve_spec(spec, context), volumes=volumes, ports=(), command=command, network="none")
    try:
        container_id = _create(spec_of_check, context, ownership.HELPER)
        lifecycle.start(context, container_id)
        code = client.api.wait(container_id, timeout=START_S)["StatusCode"]
        lines = log_reader.read_last_lines(client, container_id, 40)
    finally:
        lifecycle.force_remove(context, container_id) if container_id else None
        gateway_folders.remove_folder(folder)
    if code != 0:
        raise Failed(f"HAProxy refuses the configuration: {_format_alerts(lines)}", fix="Nothing was touched.")


def create(spec: ContainerSpec, context: Context) -> str:
    """Create a container from the spec's image, once that is verified. Returns its id. Raises Failed."""
    return _create(spec, context, ownership.GATEWAY, spec.name)


def _create(spec: ContainerSpec, context: Context, role: str, name: str = "") -> str:
    api: Any = context.docker().api
    image = image_names.find(api, spec.image, spec.image_ids, machine_platform(context.machine))
    if not image:
        raise Failed(f"{spec.image} is not on the host, or not verified.", fix="`invoke gateway.deploy` pulls it.")
    body = container_options.build_create_body(spec)
    body["Image"] = image_names.name_of(api, spec.image, image["Id"])
    return lifecycle.create(context, body, role, server=name, name=name)


def start(container_id: str, spec: ContainerSpec, context: Context) -> None:
    """Start the container that was created from this spec. Raises Failed with the holder of its port."""
    from docker.errors import APIError

    client = context.docker()
    try:
        lifecycle.start(context, container_id)
    except APIError as error:
        raise containers.start_error(error, client, spec.ports) from None


def reload(context: Context) -> None:
    """Have a running HAProxy reload its files: new requests use them, running streams finish in the old process.

    The command goes to its own socket. Docker treats any forwarded signal as a manual stop, after which the restart policy
    `unless-stopped` no longer restarts a container that is killed.
    """
    folders = gateway_folders.current_folders(gateway_folders.state_of(context))
    save_states(folders.sockets, folders.files, gateway_folders.read_files(folders.files).get(CONFIG_FILE, ""))
    haproxy_sockets.send_command(folders.sockets, "reload", MASTER_SOCKET)


def wait_for_running(name: str, digest: str, context: Context) -> None:
    """Wait until HAProxy runs with the files of this digest. Raises Failed with its last output."""
    folders, until_s = gateway_folders.current_folders(gateway_folders.state_of(context)), time.monotonic() + START_S
    while haproxy_sockets.running_digest(folders.sockets) != digest:
        container = containers.inspect(context.docker(), name)
        if container is None or not container["State"]["Running"] or time.monotonic() > until_s:
            lines = log_reader.read_last_lines(context.docker(), name, 40) if container else []
            raise Failed(f"HAProxy does not run with the new configuration: {_format_alerts(lines)}")
        time.sleep(POLL_S)
    clear_states(folders.files)


def _format_alerts(lines: list[str]) -> str:
    """Return HAProxy's alerts, else the last lines of its output."""
    output_lines = [line.strip() for line in lines if line.strip()]
    alerts = [line for line in output_lines if "[ALERT]" in line] or output_lines[-SHOWN_LINES:]
    return " ".join(alerts[:SHOWN_LINES]) or "it said nothing."


# Server states for HAProxy's reload: drained servers and serving interim servers, which a reload would reset.
#
# HAProxy prefers the port in this file over the one in its configuration, so only these servers are in it, with the port of the
# next configuration. The file exists only during a reload: an outdated one would drain servers that have been returned since.

STATES_VERSION = "1"
BACKEND_COLUMN, SERVER_COLUMN, ADDRESS_COLUMN, ADMIN_STATE_COLUMN, PORT_COLUMN = (
    "be_name",
    "srv_name",
    "srv_addr",
    "srv_admin_state",
    "srv_port",
)
#: bits of the administrative state: forced maintenance, forced drain (haproxy, management.txt, "show servers state")
FORCED = 0x01 | 0x08
#: bit of an interim server: `disabled` in the configuration. Without the others, it serves (tried with 2.6.12)
DISABLED = 0x04
SERVER_LINE = re.compile(r"server (\S+) \S+:([0-9]+)(?: |$)")


def save_states(sockets: Path, files: Path, config: str) -> None:
    """Record the drained servers of the running HAProxy for its successor.

    Args:
        sockets: the folder of the running HAProxy's sockets.
        files: the folder of the files that are read next.
        config: the configuration among them.
    """
    _write_states(
        files, list(_select_drained(haproxy_sockets.send_command(sockets, "show servers state"), _parse_ports(config)))
    )


def clear_states(files: Path) -> None:
    """Remove the record after the reload."""
    _write_states(files, [])


def _write_states(files: Path, lines: list[str]) -> None:
    write_atomically(files / STATES_FILE, "".join(f"{line}\n" for line in (STATES_VERSION, *lines)).encode())


def _select_drained(answer: str, ports: dict[tuple[str, str], str]) -> Iterator[str]:
    """Yield the header, and the rows of drained or interim servers that remain, with their new ports."""
    version, _, rest = answer.partition("\n")
    header, *rows = rest.splitlines() or [""]
    names = header.removeprefix("# ").split()
    if version != STATES_VERSION or not {
        BACKEND_COLUMN,
        SERVER_COLUMN,
        ADDRESS_COLUMN,
        ADMIN_STATE_COLUMN,
        PORT_COLUMN,
    } <= {*names}:
        return
    yield header
    for row in rows:
        columns = dict(zip(names, row.split(), strict=False))
        port = ports.get((columns.get(BACKEND_COLUMN, ""), columns.get(SERVER_COLUMN, "")), "")
        if (
            port
            and columns.get(ADMIN_STATE_COLUMN, "").isdecimal()
            and int(columns[ADMIN_STATE_COLUMN]) & (FORCED | DISABLED)
        ):
            yield " ".join({**columns, ADDRESS_COLUMN: "-", PORT_COLUMN: port}.values())


def _parse_ports(config: str) -> dict[tuple[str, str], str]:
    """Return the port of each server in a configuration, by backend and name."""
    ports, backend = dict[tuple[str, str], str](), ""
    for line in map(str.strip, config.splitlines()):
        if line.startswith("backend "):
            backend = line.removeprefix("backend ")
        elif server := SERVER_LINE.match(line):
            ports[backend, server[1]] = server[2]
    return ports
