"""What the host's other servers generate during a measurement: they share its GPU and its memory's bandwidth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkwright.engines import http as roles
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import containers, engine_of, server_key
from sparkwright.host.module import Context
from sparkwright.host.records import servers
from sparkwright.measure import server_metrics


def others(context: Context, name: str) -> set[str]:
    """The containers of this host's servers but for this one, interim servers among them."""
    verified = {str((one.get("spec") or {}).get("name") or "") for one in servers.good(context.state)}
    interims = {one + containers.INTERIM for one in (*verified, name) if one}
    return (verified | interims) - {name, ""}


def generated(context: Context, names: Iterable[str]) -> dict[str, float]:
    """Tokens that each of these containers has generated so far, by name; without those that do not run or do not tell, and
    without any where the engine does not answer."""
    counted = {name: _generated(context, name) for name in names}
    return {name: tokens for name, tokens in counted.items() if tokens is not None}


def since(context: Context, before: Mapping[str, float]) -> dict[str, float]:
    """What they generated since, by name; only those that generated any."""
    now = generated(context, before)
    return {name: now[name] - before[name] for name in now if now[name] > before[name]}


def _generated(context: Context, name: str) -> float | None:
    try:
        found = containers.inspect(context.docker(), name)
    except SparkwrightError:
        return None
    url = containers.url_of(found) if found and found["State"]["Running"] else ""
    if not found or not url:
        return None
    key = server_key.of_container(context.state, found)
    return server_metrics.read(engine_of.of_container(found).http, url, key)[0].get(roles.GENERATED)
