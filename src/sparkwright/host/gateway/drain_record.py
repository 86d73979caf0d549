"""Drain this host's server at its gateways, and return it to them. The gateways are first recorded in drained.json.

If a run is killed before it returns the server, the next run or health check that finds the server healthy does so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence

from sparkwright.gateway import operations
from sparkwright.host.gateway import server_operations
from sparkwright.host.gateway.server_operations import Gateway, GatewayError
from sparkwright.host.state import StateFolder

RECORD_NAME = "drained"
POLL_S = 0.2
#: time limit for an action on all models of a server at one gateway; it usually takes milliseconds per model
ACTION_TIMEOUT_S = 15.0
#: how long a returned server may take to be up at all gateways, which check a server that is down every two seconds
UP_TIMEOUT_S = 30.0
#: older records are ignored: the gateway may no longer exist
RECORD_LIFETIME_S = 86400.0


def load_gateways(state: StateFolder, current: Sequence[Gateway] = ()) -> list[Gateway]:
    """Return the gateways at which this host's server is recorded as drained.

    Args:
        current: the gateways as configured now. They replace recorded ones of the same name, whose port or certificate may
            have been changed since.
    """
    current_by_name = {gateway.name: gateway for gateway in current}
    record = state.read(RECORD_NAME) or {}
    gateways = list[Gateway]()
    for gateway in record.get("gateways", ()):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            recorded_gateway = Gateway.from_json(gateway)
            gateways.append(current_by_name.get(recorded_gateway.name, recorded_gateway))
    return gateways if 0 <= time.time() - record.get("since", 0) < RECORD_LIFETIME_S else []


def send_action(gateway: Gateway, key: str, action: str) -> None:
    """Request an action for this host's server from a gateway, once per model that the gateway routes to it.

    Raises:
        GatewayError: A request failed, or the actions took longer than ACTION_TIMEOUT_S.
    """
    # the number of models comes from the gateway, which may be hostile
    deadline_s = time.monotonic() + ACTION_TIMEOUT_S
    for server in server_operations.list_servers(gateway, key):
        if time.monotonic() > deadline_s:
            raise GatewayError(f"took longer than {ACTION_TIMEOUT_S:g} s")
        server_operations.send_action(gateway, key, action, server)


def drain(state: StateFolder, gateways: Sequence[Gateway], run: str) -> list[str]:
    """Drain this host's server at the gateways. Returns a message for each gateway where that failed."""
    key, problems = server_operations.load_key(state), list[str]()
    if not key:  # `gateway.deploy` creates it
        return [
            f"the gateway {gateway.name} does not accept this host's key yet (`gateway.deploy` registers it)"
            for gateway in gateways
        ]
    recorded_gateways = [*gateways, *(gateway for gateway in load_gateways(state, gateways) if gateway not in gateways)]
    state.write(
        RECORD_NAME,
        {"gateways": [gateway.to_json() for gateway in recorded_gateways], "since": time.time(), "run": run},
    )
    for gateway in gateways:
        try:
            send_action(gateway, key, operations.DRAIN)
        except GatewayError as error:
            problems.append(f"the gateway {gateway.name} {error}: not drained there")
    return problems


def count_running_requests(state: StateFolder, gateways: Sequence[Gateway]) -> int:
    """Return the number of running requests to this host's server, at the gateways that answer.

    More may be running, from clients of a gateway that does not answer or clients that use the server directly.

    If the server is up again at a gateway, for example because the gateway was restarted, it is drained again.
    """
    key, total = server_operations.load_key(state), 0
    for gateway in gateways:
        with contextlib.suppress(GatewayError):
            servers = server_operations.list_servers(gateway, key)
            total += sum(server.running for server in servers)
            if any(server.state == "up" for server in servers):
                send_action(gateway, key, operations.DRAIN)
    return total


def pause_checks(state: StateFolder, gateways: Sequence[Gateway]) -> None:
    """Stop the gateways' health checks until the server is returned: their generated tokens would distort a throughput test."""
    key = server_operations.load_key(state)
    for gateway in gateways:
        with contextlib.suppress(GatewayError):
            send_action(gateway, key, operations.MAINTENANCE)


def find_draining(state: StateFolder, current: Sequence[Gateway]) -> list[Gateway]:
    """Return the recorded gateways, see `load_gateways`, except those that report the server as up."""
    key, draining_gateways = server_operations.load_key(state), list[Gateway]()
    for gateway in load_gateways(state, current):
        is_up = False
        with contextlib.suppress(GatewayError):
            is_up = wait_for_up(gateway, key, deadline_s=0)
        if not is_up:
            draining_gateways.append(gateway)
    return draining_gateways


def return_server(state: StateFolder, current: Sequence[Gateway] = ()) -> tuple[list[str], list[str]]:
    """Return this host's server to the gateways at which it is drained, and wait until it is up there.

    Args:
        current: see `load_gateways`.

    Returns:
        The names of the gateways that accepted it, and a message for each gateway that failed or at which it is not up yet.
    """
    key, problems = server_operations.load_key(state), list[str]()
    returned_names, unreached_gateways = list[str](), list[Gateway]()
    deadline_s = time.monotonic() + UP_TIMEOUT_S
    for gateway in load_gateways(state, current):
        try:
            send_action(gateway, key, operations.READY)
            if not wait_for_up(gateway, key, deadline_s):
                problems.append(f"the server is not up yet at the gateway {gateway.name}")
            returned_names.append(gateway.name)
        except GatewayError as error:
            problems.append(f"the gateway {gateway.name} {error}: not returned there yet")
            unreached_gateways.append(gateway)
    if unreached_gateways:
        state.write(
            RECORD_NAME,
            {**(state.read(RECORD_NAME) or {}), "gateways": [gateway.to_json() for gateway in unreached_gateways]},
        )
    else:
        state.remove(RECORD_NAME)
    return returned_names, problems


def wait_for_up(gateway: Gateway, key: str, deadline_s: float) -> bool:
    """Wait until a server is up at a gateway for all models. Returns False if it is not up by the deadline, a monotonic time.

    Raises GatewayError.
    """
    while not all(server.state == "up" for server in server_operations.list_servers(gateway, key)):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(POLL_S)
    return True
