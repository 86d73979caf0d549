"""The interim server, which serves a server's requests while that server is being replaced, and its record, interim.json.

It runs in a separate container, NAME-interim, on another port and without a restart policy: it does not survive a reboot. If the
run is killed, the interim server is removed by the next run, or by a health check that finds the verified server healthy.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sparkwright import defaults
from sparkwright.gateway import operations
from sparkwright.gateway.model import INTERIM_SUFFIX, model_name
from sparkwright.host.containers import containers, lifecycle, ownership
from sparkwright.host.gateway import drain_record, server_operations
from sparkwright.host.gateway.server_operations import Gateway, GatewayError, NoRouteError, RoutedServer
from sparkwright.host.module import Context
from sparkwright.host.records import history, server_keys
from sparkwright.host.state import StateFolder
from sparkwright.visible import format_count

RECORD_NAME = "interim"
POLL_S = 0.2
#: how long the interim server may take to be up at all gateways
UP_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10
#: placeholder for this host's servers at a gateway that does not answer
_UNKNOWN_SERVER = RoutedServer("", "", "unknown", 0)


def container_name(name: str) -> str:
    """Return the name of the container for the interim server of the server in container `name`."""
    return name + containers.INTERIM_SUFFIX


def find_container(context: Context, name: str) -> dict[str, Any]:
    """Return the inspect data of the interim server's container; empty if there is none."""
    container = containers.inspect(context.docker(), container_name(name)) or {}
    identity = ownership.identify(context, container)
    return container if identity and identity.role == ownership.INTERIM_SERVER and identity.server == name else {}


def save_record(context: Context, name: str, gateways: Sequence[Gateway]) -> None:
    """Record that container `name` gets an interim server at these gateways. Called before the interim server starts."""
    documents = [gateway.to_json() for gateway in gateways]
    context.state.write(RECORD_NAME, {"name": name, "gateways": documents, "since": time.time(), "run": context.run_id})


def load_record(state: StateFolder) -> dict[str, Any]:
    """Return the record of the interim server; empty if there is none or it has been removed."""
    return state.read(RECORD_NAME) or {}


def find_routing_problem(state: StateFolder, gateways: Sequence[Gateway], served_name: str) -> str:
    """Return the reason why a gateway cannot route this model's requests to an interim server; empty if all gateways can."""
    key = server_operations.load_key(state)
    for gateway in gateways:
        try:
            states_by_model = {
                model_name(server.backend): server.state for server in server_operations.list_servers(gateway, key)
            }
            interim_servers = server_operations.list_servers(_interim_gateway(gateway), key)
        except GatewayError as error:
            hint = " (`gateway.deploy` adds it)" if isinstance(error, NoRouteError) else ""
            return f"the gateway {gateway.name} {error}{hint}"
        if served_name not in states_by_model or len(interim_servers) < len(states_by_model):
            return f"the gateway {gateway.name} routes {', '.join(sorted(states_by_model))} to this server, not {served_name}"
        if states_by_model[served_name] != "up":
            return (
                f"the gateway {gateway.name} sends this server no requests: it is {states_by_model[served_name]} there"
            )
    return ""


def start_serving(state: StateFolder, gateways: Sequence[Gateway]) -> str:
    """Enable the interim server at every gateway and wait until it is up there. Returns the first problem, or ""."""
    key, deadline_s = server_operations.load_key(state), time.monotonic() + UP_TIMEOUT_S
    try:
        for gateway in gateways:
            _send_action(gateway, key, operations.READY)
            if not drain_record.wait_for_up(_interim_gateway(gateway), key, deadline_s):
                return f"it is not up at the gateway {gateway.name}"
    except GatewayError as error:
        return f"the gateway {gateway.name} {error}"
    return ""


def drain_and_remove(
    context: Context, name: str, gateways: Sequence[Gateway], drain_s: float = defaults.DRAIN_TIMEOUT_S
) -> tuple[bool, str]:
    """Drain and remove the interim server and its record, unless a gateway would be left without a server.

    Args:
        name: the container that the interim server replaces.
        drain_s: how long its requests may take to finish, in seconds.

    Returns:
        Whether the interim server is gone, and a message; the message is empty if there was no interim server.
    """
    interim_name, key = container_name(name), server_operations.load_key(context.state)
    container = find_container(context, name)
    servers_by_gateway = {gateway: _list_servers(_interim_gateway(gateway), key) for gateway in gateways}
    serving_gateways = [
        gateway
        for gateway, servers in servers_by_gateway.items()
        if any(server.state == "up" for server in servers or ())
    ]
    if unserved_gateways := [
        gateway
        for gateway in serving_gateways
        if not all(server.state == "up" for server in _list_servers(gateway, key) or [_UNKNOWN_SERVER])
    ]:
        return False, f"{interim_name} still serves at the gateway {unserved_gateways[0].name}, where {name} is not up"
    cut_request_count, silent_gateways = drain_requests(serving_gateways, key, drain_s)
    silent_gateways += [gateway.name for gateway, servers in servers_by_gateway.items() if servers is None]
    for gateway in gateways:
        with contextlib.suppress(GatewayError):
            _send_action(gateway, key, operations.MAINTENANCE)
    if container:
        lifecycle.remove(context, container, STOP_TIMEOUT_S)
        server_keys.remove_unneeded(context.state, interim_name, ())
    cut_requests = f"{'at least ' if silent_gateways else ''}{format_count(cut_request_count, 'request')}"
    if cut_request_count:
        history.append(context, "requests cut", why=f"{cut_requests} of {interim_name} after {drain_s:g} s")
    context.state.remove(RECORD_NAME)
    message = f"removed; {cut_requests} cut after {drain_s:g} s" if cut_request_count else "removed"
    if silent_gateways:
        names = ", ".join(f"the gateway {name}" for name in silent_gateways)
        message += f"; not counted: requests through {names}, which did not answer"
    return True, message if container else ""


def drain_requests(gateways: Sequence[Gateway], key: str, drain_s: float) -> tuple[int, list[str]]:
    """Drain the interim server at the gateways.

    Returns:
        The number of requests still running after drain_s, and the names of the gateways that did not answer the last query.
        For these, the requests in their last answer are counted.
    """
    deadline_s = time.monotonic() + drain_s
    for gateway in gateways:
        with contextlib.suppress(GatewayError):
            _send_action(gateway, key, operations.DRAIN)
    counts = dict.fromkeys(gateways, 0)
    while True:
        silent_gateways = []
        for gateway in gateways:
            servers = _list_servers(_interim_gateway(gateway), key)
            if servers is None:
                silent_gateways.append(gateway.name)
            else:
                counts[gateway] = sum(server.running for server in servers)
        running_count = sum(counts.values())
        if not running_count or time.monotonic() > deadline_s:
            return running_count, silent_gateways
        time.sleep(POLL_S)


def remove_leftover(context: Context) -> str:
    """Remove the interim server that a killed run left behind. Returns a message; empty if there was none."""
    record = load_record(context.state)
    if not record:
        return ""
    name = str(record["name"])
    removed, message = drain_and_remove(context, name, [Gateway.from_json(gateway) for gateway in record["gateways"]])
    return f"{container_name(name)} {message}" if removed and message else message


def _interim_gateway(gateway: Gateway) -> Gateway:
    """Return the gateway with the interim server as this host's server."""
    return replace(gateway, server=gateway.server + INTERIM_SUFFIX)


def _list_servers(gateway: Gateway, key: str) -> list[RoutedServer] | None:
    """Return this host's servers at a gateway; None if the gateway does not answer."""
    try:
        return server_operations.list_servers(gateway, key)
    except NoRouteError:
        return []
    except GatewayError:
        return None


def _send_action(gateway: Gateway, key: str, action: str) -> None:
    drain_record.send_action(_interim_gateway(gateway), key, action)
