"""What the host's other servers generate during a measurement: they share its GPU and its memory's bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from sparkwright.engines import http as roles
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import containers, engine_of, server_key
from sparkwright.host.module import Context
from sparkwright.host.records import servers
from sparkwright.measure import server_metrics


def generated(context: Context, base_url: str) -> dict[str, float]:
    """Tokens that each of this host's servers has generated so far, by its container; without the one that answers at base_url.

    Interim servers are among them. Those that do not run or do not tell are left out, and all where the engine does not answer.
    """
    verified = {str((row.get("spec") or {}).get("name") or "") for row in servers.good(context.state)} - {""}
    names = verified | {name + containers.INTERIM for name in verified}
    counted = {name: _generated(context, name, urlsplit(base_url).port) for name in sorted(names)}
    return {name: tokens for name, tokens in counted.items() if tokens is not None}


def since(context: Context, base_url: str, before: Mapping[str, float]) -> dict[str, float]:
    """What they generated since, by container; only those that generated any."""
    now = generated(context, base_url)
    return {name: now[name] - before[name] for name in now if now[name] > before.get(name, now[name])}


def _generated(context: Context, name: str, own_port: int | None) -> float | None:
    try:
        found = containers.inspect(context.docker(), name)
    except SparkwrightError:
        return None
    url = containers.url_of(found) if found and found["State"]["Running"] else ""
    if not found or not url or urlsplit(url).port == own_port:
        return None
    key = server_key.of_container(context.state, found)
    return server_metrics.read(engine_of.of_container(found).http, url, key)[0].get(roles.GENERATED)
