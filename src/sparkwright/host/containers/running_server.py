"""Running model servers, whoever started them. Model, image and arguments come from a container's inspect data."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sparkwright import units
from sparkwright.engines import engine, openai_api
from sparkwright.engines import http as engine_http
from sparkwright.errors import SparkwrightError
from sparkwright.host.containers import container_labels, container_options, containers, server_key
from sparkwright.host.images.image_names import digests_of
from sparkwright.host.module import Context
from sparkwright.host.records import verified_states
from sparkwright.measure import http_probe, server_counters
from sparkwright.measure.http_probe import Target
from sparkwright.trust import secret_patterns
from sparkwright.trust.image_name import with_digest, without_digest

#: prefix of Docker's zero time
ZERO_TIME_PREFIX = "0001-"
PROBE_TIMEOUT_S = 2.0
MAX_CONTAINERS, MAX_MODELS = 64, 16


@dataclass(frozen=True, slots=True)
class RunningContainer:
    """A running container and its image."""

    #: the container's inspect data
    container: dict[str, Any]
    #: the image's inspect data; empty if the image is gone
    image_inspect: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.container["Id"])

    @property
    def name(self) -> str:
        return containers.name_of(self.container)

    @property
    def url(self) -> str:
        """Its URL on this host; empty if it publishes no port."""
        return containers.url_of(self.container)

    @property
    def port(self) -> int:
        """Its port on the host; 0 if it publishes none."""
        return int(self.url.rpartition(":")[2] or 0)

    @property
    def loopback(self) -> bool:
        """True if only programs on the host can reach it."""
        bindings = (self.container["HostConfig"].get("PortBindings") or {}).values()
        addresses = (str(row.get("HostIp") or "") for rows in bindings for row in rows or ())
        return next(addresses, "").startswith(("127.", "::1"))

    @property
    def image(self) -> str:
        """Its image as repository:tag@digest; the image's Id if it has no registry digest."""
        image_name = without_digest(str(self.container["Config"].get("Image") or ""))
        digest = next(iter(digests_of(self.image_inspect)), str(self.container["Image"]))
        return digest if not image_name or image_name == digest else with_digest(image_name, digest)

    @property
    def words(self) -> list[str]:
        """Its command line: entrypoint and command."""
        return container_options.command_line_of(self.container)

    @property
    def flags(self) -> dict[str, Any]:
        """Its flags by name; a bare switch is True. Values of flags named like a secret are masked."""
        flags = container_options.parse_flags(self.words)
        return {
            name.lstrip("-"): secret_patterns.mask_field(name, value) or True
            for name, value in flags.items()
            if name.startswith("-")
        }

    @property
    def age_s(self) -> float:
        """Seconds since its last start."""
        return max(0.0, time.time() - containers.started_s(self.container))

    @property
    def model_dir(self) -> str:
        """The host folder of its model: the first mount named in its command line; empty if there is none."""
        words = {text.rstrip("/") for word in self.words for text in (word, word.partition("=")[2])}
        for bind in self.container["HostConfig"].get("Binds") or ():
            host_path, _, rest = str(bind).partition(":")
            container_path = rest.partition(":")[0]
            if container_path.rstrip("/") in words - {""}:
                return host_path
        return ""


def start_identity(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a container's start: id, started (as Docker formats it), restarts (those by its policy)."""
    started = str(container["State"].get("StartedAt") or "")
    return {"id": container["Id"], "started": started, "restarts": int(container.get("RestartCount") or 0)}


def describe_exit_age(container: Mapping[str, Any]) -> str:
    """Return the time since a container exited, for example "3 minutes ago"; "never started" if it never was."""
    text = str(container["State"].get("FinishedAt") or "")
    if text.startswith(ZERO_TIME_PREFIX):
        return "never started"
    ended_s = containers.parse_time(text)
    return "time unknown" if ended_s is None else f"{units.format_rough_duration(time.time() - ended_s)} ago"


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A container that serves models."""

    id: str
    name: str
    image: str
    #: the engine named by its label, else the one detected from its model list
    engine: str
    #: its port on the host
    port: int
    #: names of the models that it serves; empty if the server requires a key
    models: list[str]
    #: see `RunningContainer.model_dir`
    model_dir: str


def list_servers(context: Context) -> list[ModelServer]:
    """Return the servers among the running containers. Raises Failed if Docker cannot be queried."""
    client = context.docker()
    rows = client.api.containers()[:MAX_CONTAINERS]
    inspected_containers = [
        container for row in rows if (container := containers.inspect(client, row["Id"])) is not None
    ]
    candidates = [
        (container, port) for container in inspected_containers for port in dict.fromkeys(_candidate_ports(container))
    ]
    if not candidates:
        return []
    with ThreadPoolExecutor(max_workers=8) as pool:
        probe_results = list(pool.map(lambda candidate: _probe_server(*candidate), candidates))
    servers: dict[str, ModelServer] = {}
    for server in probe_results:
        if server is not None:
            servers.setdefault(server.id, server)
    return list(servers.values())


def _candidate_ports(container: dict[str, Any]) -> Iterator[int]:
    """Yield the host's ports to probe: published ports, or on the host's network the ones set by flags of any engine."""
    for rows in (container["HostConfig"].get("PortBindings") or {}).values():
        yield from (int(row["HostPort"]) for row in rows or () if str(row.get("HostPort") or "").isdecimal())
    if container["HostConfig"].get("NetworkMode") == "host":
        flags = RunningContainer(container, {}).flags
        yield from (engine.flags.port(flags) for engine in engine.list_supported() if not engine.needs_description)


def _probe_server(container: dict[str, Any], port: int) -> ModelServer | None:
    labels = container["Config"].get("Labels") or {}
    is_labelled, server_engine = engine.ENGINE_LABEL in labels, engine.from_labels(labels)
    base_url = f"http://{_published_address(container, port)}:{port}"
    answer = http_probe.send_request(base_url, server_engine.http.models_path, timeout_s=PROBE_TIMEOUT_S)
    body, models = answer.json(), []
    if answer.status in (401, 403):
        if not is_labelled:
            return None
    elif answer.status != 200 or not isinstance(body, dict) or not isinstance(body.get("data"), list):
        return None
    else:
        server_engine = server_engine if is_labelled else engine.detect_from_models(body)
        models = [name[:200] for name in openai_api.parse_models(server_engine.http, body)][:MAX_MODELS]
    running, image = RunningContainer(container, {}), str(container["Config"].get("Image") or "")
    return ModelServer(running.id, running.name, image, server_engine.name, port, models, running.model_dir)


def _published_address(container: dict[str, Any], port: int) -> str:
    """Return the address at which this host reaches a published port."""
    for rows in (container["HostConfig"].get("PortBindings") or {}).values():
        for row in rows or ():
            if row.get("HostPort") == str(port) and row.get("HostIp") not in (None, "", "0.0.0.0", "::"):
                return f"[{row['HostIp']}]" if ":" in row["HostIp"] else str(row["HostIp"])
    return "127.0.0.1"


def read_generated_tokens(context: Context, base_url: str) -> dict[str, float]:
    """Return the tokens that each of this host's other servers has generated so far, by container.

    This includes interim servers, but not the server at base_url or those without metrics. Empty if Docker does not answer.
    """
    states = verified_states.iter_all_servers(context.state)
    verified_names = {verified.spec["name"] for verified in states}
    names = verified_names | {name + containers.INTERIM_SUFFIX for name in verified_names}
    counts = {name: _read_tokens(context, name, urlsplit(base_url).port) for name in sorted(names)}
    return {name: tokens for name, tokens in counts.items() if tokens is not None}


def read_tokens_since(context: Context, base_url: str, earlier_counts: Mapping[str, float]) -> dict[str, float]:
    """Return the tokens that each server generated since `earlier_counts`, by container, if any."""
    current_counts = read_generated_tokens(context, base_url)
    return {
        name: current_counts[name] - earlier_counts[name]
        for name in current_counts
        if current_counts[name] > earlier_counts.get(name, current_counts[name])
    }


def _read_tokens(context: Context, name: str, own_port: int | None) -> float | None:
    try:
        container = containers.inspect(context.docker(), name)
    except SparkwrightError:
        return None
    url = containers.url_of(container) if container and container["State"]["Running"] else ""
    if not container or not url or urlsplit(url).port == own_port:
        return None
    key = server_key.read_container_key(context.state, container)
    counters, _ = server_counters.read_counters(
        Target(container_labels.engine_of_container(container).http, url, api_key=key)
    )
    return counters.get(engine_http.GENERATED)
