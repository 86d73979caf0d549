"""drained.json: the gateways at which this host's server is drained, written before the requests are sent.

If the run that drained the server is cut off, the next run or health check that finds it healthy returns it.
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
#: limit for one gateway's actions on all models of a server; a normal one takes milliseconds each
ACTION_TIMEOUT_S = 15.0
#: how long a returned server may take to be up: a gateway checks a server that is down every two seconds
UP_TIMEOUT_S = 30.0
#: lifetime of the record: a gateway may be gone for good
RECORD_LIFETIME_S = 86400.0


def load_gateways(state: StateFolder) -> list[Gateway]:
    """Return the gateways at which this host's server is recorded as drained."""
    record = state.read(RECORD_NAME) or {}
    gateways = list[Gateway]()
    for gateway in record.get("gateways", ()):
        with contextlib.suppress(KeyError, TypeError, ValueError):
            gateways.append(Gateway.from_json(gateway))
    return gateways if 0 <= time.time() - record.get("since", 0) < RECORD_LIFETIME_S else []


def send_action(gateway: Gateway, key: str, action: str) -> None:
    """Send a gateway an action for this host's server, once per model that it routes to it.

    Raises:
        GatewayError: also if all of it takes longer than ACTION_TIMEOUT_S, however many models a gateway claims to have.
    """
    until_s = time.monotonic() + ACTION_TIMEOUT_S
    for server in server_operations.list_servers(gateway, key):
        if time.monotonic() > until_s:
            raise GatewayError(f"takes longer than {ACTION_TIMEOUT_S:g} s")
        server_operations.send_action(gateway, key, action, server)


def drain(state: StateFolder, gateways: Sequence[Gateway], run: str) -> list[str]:
    """Drain this host's server at the gateways. Returns a sentence for each gateway that did not."""
    key, problems = server_operations.load_key(state), list[str]()
    if not key:  # `gateway.deploy` creates it: none was deployed with this host behind it, and none has the key
        return [
            f"the gateway {gateway.name} does not know this host yet (`gateway.deploy` tells it)"
            for gateway in gateways
        ]
    recorded = [*gateways, *(gateway for gateway in load_gateways(state) if gateway not in gateways)]
    state.write(
        RECORD_NAME, {"gateways": [gateway.to_json() for gateway in recorded], "since": time.time(), "run": run}
    )
    for gateway in gateways:
        try:
            send_action(gateway, key, operations.DRAIN)
        except GatewayError as why:
            problems.append(f"the gateway {gateway.name} {why}: not drained there")
    return problems


def count_running_requests(state: StateFolder, gateways: Sequence[Gateway]) -> int:
    """Return the number of running requests to this host's server, as the gateways count them.

    Drain it again at a gateway that was restarted and has lost the drain.
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
    """Stop the gateways' checks until the server is returned: they generate tokens, which a throughput test would count."""
    key = server_operations.load_key(state)
    for gateway in gateways:
        with contextlib.suppress(GatewayError):
            send_action(gateway, key, operations.MAINTENANCE)


def return_server(state: StateFolder) -> tuple[list[str], list[str]]:
    """Return this host's server to the gateways at which it is drained, and wait until it is up there.

    Returns:
        The names of those gateways, and a sentence for each where it is not up.
    """
    key, returned, problems, unreached = server_operations.load_key(state), list[str](), list[str](), list[Gateway]()
    until_s = time.monotonic() + UP_TIMEOUT_S
    for gateway in load_gateways(state):
        try:
            send_action(gateway, key, operations.READY)
            if not _wait_for_up(gateway, key, until_s):
                problems.append(f"the gateway {gateway.name} does not find it up yet")
            returned.append(gateway.name)
        except GatewayError as why:
            problems.append(f"the gateway {gateway.name} {why}: not returned there yet")
            unreached.append(gateway)
    if unreached:
        state.write(
            RECORD_NAME, {**(state.read(RECORD_NAME) or {}), "gateways": [gateway.to_json() for gateway in unreached]}
        )
    else:
        state.remove(RECORD_NAME)
    return returned, problems


def _wait_for_up(gateway: Gateway, key: str, until_s: float) -> bool:
    while not all(server.state == "up" for server in server_operations.list_servers(gateway, key)):
        if time.monotonic() > until_s:
            return False
        time.sleep(POLL_S)
    return True
