"""interim.json: the interim server, which takes a server's requests during its replacement. Written before it starts.

It is a container of its own, NAME-interim, on another port, and never gets a restart policy: a reboot ends it. If the run is cut
off, the next run, or a health check that finds the verified server healthy, removes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sparkwright import defaults
from sparkwright.gateway import operations
from sparkwright.gateway.model import INTERIM, model_of
from sparkwright.host.containers import container_labels, containers, lifecycle
from sparkwright.host.gateway import drain_record, server_operations
from sparkwright.host.gateway.server_operations import Gateway, Server, Unheard
from sparkwright.host.module import Context
from sparkwright.host.records import history, server_keys
from sparkwright.host.state import StateFolder
from sparkwright.visible import count

NAME = "interim"
POLL_S = 0.2
#: how long a gateway may take to see it up
UP_S = 30.0
STOP_S = 10


def container_of(name: str) -> str:
    """Return the name of a container's interim server."""
    return name + containers.INTERIM


def of(context: Context, name: str) -> dict[str, Any]:
    """Return the inspect of a container's interim server; empty if none was created for it."""
    found = containers.inspect(context.docker(), container_of(name)) or {}
    mine = container_labels.identify(context, found)
    return found if mine and mine.role == container_labels.BESIDE and mine.server == name else {}


def remember(context: Context, name: str, gateways: Sequence[Gateway]) -> None:
    """Record that an interim server is about to start.

    Args:
        name: of the container that is replaced.
    """
    rows = [gateway.to_json() for gateway in gateways]
    context.state.write(NAME, {"name": name, "gateways": rows, "since": time.time(), "run": context.run_id})


def kept(state: StateFolder) -> dict[str, Any]:
    """Return the record of the interim server that is not ended yet; empty if there is none."""
    return state.read(NAME) or {}


def why_not(state: StateFolder, gateways: Sequence[Gateway], served_name: str) -> str:
    """Return the reason why the gateways would not route this model's requests to an interim server; empty if they would."""
    key = server_operations.kept(state)
    for gateway in gateways:
        try:
            routed = {model_of(server.backend): server.state for server in server_operations.servers(gateway, key)}
            places = server_operations.servers(_interim(gateway), key)
        except Unheard as why:
            more = " (`gateway.deploy` makes a place for one)" if str(why).startswith("routes nothing") else ""
            return f"the gateway {gateway.name} {why}{more}"
        if served_name not in routed or len(places) < len(routed):
            return f"the gateway {gateway.name} routes {', '.join(sorted(routed))} to it, not {served_name}"
        if routed[served_name] != "up":
            return f"the gateway {gateway.name} sends it nothing now: it is {routed[served_name]} there"
    return ""


def serve(state: StateFolder, gateways: Sequence[Gateway]) -> str:
    """Have every gateway route to it, and wait until it is up there. Returns the failure of one, or ""."""
    key, until_s = server_operations.kept(state), time.monotonic() + UP_S
    try:
        for gateway in gateways:
            _tell(gateway, key, operations.READY)
            while not all(server.state == "up" for server in server_operations.servers(_interim(gateway), key)):
                if time.monotonic() > until_s:
                    return f"the gateway {gateway.name} does not find it up"
                time.sleep(POLL_S)
    except Unheard as why:
        return f"the gateway {gateway.name} {why}"
    return ""


def end(
    context: Context, name: str, gateways: Sequence[Gateway], drain_s: float = defaults.DRAIN_S
) -> tuple[bool, str]:
    """Drain the interim server, remove it and its record, unless a gateway would be left without a server.

    Args:
        name: of the container that it stands in for.

    Returns:
        Whether it is gone, and a sentence; empty if there was none.
    """
    interim, key = container_of(name), server_operations.kept(context.state)
    there = of(context, name)
    serving = [
        gateway for gateway in gateways if any(server.state == "up" for server in _there(_interim(gateway), key))
    ]
    if alone := [
        gateway for gateway in serving if not all(server.state == "up" for server in _there(gateway, key) or [_GONE])
    ]:
        return False, f"{interim} still serves at the gateway {alone[0].name}, which does not find {name} up"
    cut = _drained(serving, key, drain_s)
    for gateway in gateways:
        with contextlib.suppress(Unheard):
            _tell(gateway, key, operations.REST)
    if there:
        lifecycle.remove(context, there, STOP_S)
        server_keys.drop(context.state, interim, ())
    if cut:
        history.append(context, "requests cut", why=f"{count(cut, 'request')} of {interim} after {drain_s:g} s")
    context.state.remove(NAME)
    more = f"; {count(cut, 'request')} cut after {drain_s:g} s" if cut else ""
    return True, f"removed{more}" if there else ""


def end_kept(context: Context) -> str:
    """End the interim server that a run left behind. Returns a sentence; empty if there was none."""
    found = kept(context.state)
    if not found:
        return ""
    name = str(found["name"])
    gone, message = end(context, name, [Gateway.of(gateway) for gateway in found["gateways"]])
    return f"{container_of(name)} {message}" if gone and message else message


#: substitute for the rows of a gateway that does not answer
_GONE = Server("", "", "unknown", 0)


def _interim(gateway: Gateway) -> Gateway:
    return replace(gateway, server=gateway.server + INTERIM)


def _there(gateway: Gateway, key: str) -> list[Server]:
    try:
        return server_operations.servers(gateway, key)
    except Unheard:
        return []


def _tell(gateway: Gateway, key: str, action: str) -> None:
    drain_record.tell(_interim(gateway), key, action)


def _drained(gateways: Sequence[Gateway], key: str, drain_s: float) -> int:
    """Drain the interim server at the gateways. Returns the number of requests left after drain_s."""
    until_s = time.monotonic() + drain_s
    for gateway in gateways:
        with contextlib.suppress(Unheard):
            _tell(gateway, key, operations.DRAIN)
    while running := sum(server.running for gateway in gateways for server in _there(_interim(gateway), key)):
        if time.monotonic() > until_s:
            break
        time.sleep(POLL_S)
    return running
