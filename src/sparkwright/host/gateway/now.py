"""The current state of a host's gateway, from HAProxy's own socket; no container engine is needed."""

from __future__ import annotations

import time
from typing import Any

from sparkwright.gateway import clients, statistics, usage
from sparkwright.host.gateway import admin, good, place
from sparkwright.host.state import StateFolder
from sparkwright.visible import first


def inspect(state: StateFolder) -> dict[str, Any]:
    """Return the state of a host's gateway; empty if none was verified and none runs.

    Args:
        state: the host's state folder.

    Returns:
        running; verified: HAProxy uses the files that were verified last; models (gateway/statistics.py); changed: names of
        files that differ from the verified ones; clients: the usage of clients with their own keys (gateway/clients.py).
    """
    gateway = place.of(state)
    sockets, verified = place.current(gateway).sockets, good.last_in(gateway)
    rows = admin.rows(sockets)
    if not rows and not verified:
        return {}
    reads = admin.running_digest(sockets) if rows else ""
    about = {"running": bool(rows), "verified": bool(rows) and reads == verified.get("digest")}
    proofs = (verified.get("proof") or {}).get("models") or {}
    models = [
        {**model, "on_demand": bool(proofs.get(model["model"], {}).get("on_demand"))}
        for model in statistics.models(rows)
    ]
    found = {**about, "changed": _changed(gateway, verified), "models": models}
    files = place.read(place.current(gateway).files, (clients.KEYS, clients.TOKENS))
    named = clients.names_in(files.get(clients.KEYS, ""))
    if not named:
        return found | {"clients": []}
    today = usage.FILE + time.strftime("%Y-%m-%d", time.gmtime())
    day = place.read(sockets, (today,)).get(today, "")
    table, most = admin.ask(sockets, f"show table {clients.TABLE}"), files.get(clients.TOKENS, "")
    return found | {"clients": clients.used(table, day, most, named)}


def wrong(found: dict[str, Any]) -> str:
    """Return what is wrong with the gateway, in a sentence, or "". A model without a server is reported for its server."""
    if not found["running"]:
        return "the gateway is down"
    if found["changed"]:
        return f"files of the gateway differ from the verified ones: {first(found['changed'], 3)}"
    return "" if found["verified"] else "the gateway runs with a configuration that was not verified"


def _changed(gateway: StateFolder, verified: dict[str, Any]) -> list[str]:
    """Return the names of files that differ from the verified ones."""
    if not verified:
        return []
    wanted = place.read(gateway.path / place.GOOD / verified["digest"])
    there = place.read(place.current(gateway).files)
    return sorted(name for name in wanted.keys() | there.keys() if wanted and wanted.get(name) != there.get(name))
