"""The running containers that are model servers, whoever started them: those that list models like OpenAI's API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sparkwright.engines import engine, openai_api
from sparkwright.engines import http as roles
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import container_labels, containers, server_key
from sparkwright.host.containers.running_server import Running
from sparkwright.host.module import Context
from sparkwright.host.records import servers
from sparkwright.measure import http_probe

ANSWER_S = 2.0
MOST_CONTAINERS, MOST_MODELS = 64, 16


@dataclass(frozen=True, slots=True)
class Server:
    """A container that serves models."""

    id: str
    name: str
    image: str
    #: from its label, else from its answer
    engine: str
    #: on the host
    port: int
    #: served names; empty if the server requires a key
    models: list[str]
    #: see `Running.model_dir`
    model_dir: str


def find(context: Context) -> list[Server]:
    """Return the servers among the running containers. Raises Failed if Docker cannot be queried."""
    client = context.docker()
    rows = client.api.containers()[:MOST_CONTAINERS]
    seen = [found for row in rows if (found := containers.inspect(client, row["Id"])) is not None]
    candidates = [(entry, port) for entry in seen for port in dict.fromkeys(_ports(entry))]
    if not candidates:
        return []
    with ThreadPoolExecutor(max_workers=8) as at_once:
        answers = list(at_once.map(lambda each: _server(*each), candidates))
    servers: dict[str, Server] = {}
    for answer in answers:
        if answer is not None:
            servers.setdefault(answer.id, answer)
    return list(servers.values())


def _ports(container: dict[str, Any]) -> Iterator[int]:
    """Yield the possible ports on the host: published ports, or on the host's network those in an engine's flags."""
    for rows in (container["HostConfig"].get("PortBindings") or {}).values():
        yield from (int(row["HostPort"]) for row in rows or () if str(row.get("HostPort") or "").isdecimal())
    if container["HostConfig"].get("NetworkMode") == "host":
        flags = Running(container, {}).flags
        yield from (engine.flags.port(flags) for engine in engine.served() if not engine.needs_description)


def _server(container: dict[str, Any], port: int) -> Server | None:
    about, labelled = Running(container, {}), engine.LABEL in (container["Config"].get("Labels") or {})
    kind = engine.of_labels(container["Config"].get("Labels"))
    answer = http_probe.ask(f"http://{_address(container, port)}:{port}", kind.http.models, timeout_s=ANSWER_S)
    body = answer.json()
    if answer.status in (401, 403):
        return _found(about, kind.name, port, []) if labelled else None
    if answer.status != 200 or not isinstance(body, dict) or not isinstance(body.get("data"), list):
        return None
    kind = kind if labelled else engine.of_models(body)
    return _found(about, kind.name, port, [name[:200] for name in openai_api.served(kind.http, body)][:MOST_MODELS])


def _found(about: Running, kind: str, port: int, models: list[str]) -> Server:
    image = str(about.container["Config"].get("Image") or "")
    return Server(about.id, about.name, image, kind, port, models, about.model_dir)


def _address(container: dict[str, Any], port: int) -> str:
    """Return the address at which this host reaches a published port."""
    for rows in (container["HostConfig"].get("PortBindings") or {}).values():
        for row in rows or ():
            if row.get("HostPort") == str(port) and row.get("HostIp") not in (None, "", "0.0.0.0", "::"):
                return f"[{row['HostIp']}]" if ":" in row["HostIp"] else str(row["HostIp"])
    return "127.0.0.1"


def generated(context: Context, base_url: str) -> dict[str, float]:
    """Return the tokens that each of this host's other servers has generated so far, by container.

    Includes interim servers; leaves out the server at base_url and those without metrics. Empty if the engine does not answer.
    """
    verified = {str((row.get("spec") or {}).get("name") or "") for row in servers.good(context.state)} - {""}
    names = verified | {name + containers.INTERIM for name in verified}
    counted = {name: _generated(context, name, urlsplit(base_url).port) for name in sorted(names)}
    return {name: tokens for name, tokens in counted.items() if tokens is not None}


def since(context: Context, base_url: str, before: Mapping[str, float]) -> dict[str, float]:
    """Return the tokens that each server generated since `before`, by container; only those that generated any."""
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
    return http_probe.read_counters(container_labels.engine_of_container(found).http, url, key)[0].get(roles.GENERATED)
