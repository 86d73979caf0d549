"""The Ollama instances on this host, the models they hold in the memory shared by CPU and GPU, and a client to unload them.

An instance is a service, a container, a user's process, or a configured address. Sources: Ollama's envconfig (OLLAMA_HOST:
scheme, host, port 11434 unless the scheme is given); its install script (the unit ollama.service); its image ollama/ollama (port
11434 inside); its server code around v0.32.15 (/api/ps and the unload call can block while a model loads, the unload call only
queues an expiry, and a busy model stays listed until its request ends).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from sparkwright.errors import SparkwrightError
from sparkwright.host import gpu_processes
from sparkwright.host.containers import containers
from sparkwright.host.machine import OLLAMA_PORT, Machine, ollama_url
from sparkwright.host.module import Context
from sparkwright.transport import http
from sparkwright.transport.connection import InvalidAnswer, TimedOut, TransportError, resolve_host
from sparkwright.trust import bounds
from sparkwright.trust.image_name import without_digest
from sparkwright.units import format_gib

SERVICE_UNIT = "ollama.service"
IMAGE = "ollama/ollama"
#: maximum length of a model's name, including registry, namespace and tag
MAX_NAME_CHARS = 500
#: maximum number of models in one list; Ollama keeps three per GPU
MAX_MODELS = 256
POLL_S = 0.25
UNLOAD_RETRY_INTERVAL_S = 3.0
LOOKUP_TIMEOUT_S = 5.0

Kind = Literal["service", "container", "process", "address"]


@dataclass(frozen=True, slots=True)
class OllamaInstance:
    """An Ollama instance."""

    #: URL of its API
    url: str
    kind: Kind
    #: name of the unit or container; for a process, its user and pid; for an address, the URL
    name: str
    #: 0 if unknown
    pid: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.kind != "address" else self.url


def list_instances(context: Context) -> list[OllamaInstance]:
    """Return the Ollama instances on this host, one per URL.

    The URL from OLLAMA_HOST, or the default one, comes last and is always included, even if nothing answers there.
    """
    machine = context.machine
    configured_instance = OllamaInstance(machine.ollama_url, "address", machine.ollama_url)
    if machine.sandbox:
        return [configured_instance]
    instances: dict[str, OllamaInstance] = {}
    for instance in (
        *_service_instances(machine),
        *_container_instances(context),
        *_process_instances(),
        configured_instance,
    ):
        instances.setdefault(instance.url, instance)
    return list(instances.values())


def _service_instances(machine: Machine) -> list[OllamaInstance]:
    try:
        completed = machine.run(
            ["systemctl", "show", SERVICE_UNIT, "-p", "ActiveState,MainPID,Environment"], timeout_s=5
        )
    except SparkwrightError:
        return []
    fields = dict(line.partition("=")[::2] for line in completed.out.splitlines()) if completed.ok else {}
    if fields.get("ActiveState") not in ("active", "activating", "reloading"):
        return []
    variables = (word.strip('"') for word in fields.get("Environment", "").split())
    host = next((word.partition("=")[2] for word in variables if word.startswith("OLLAMA_HOST=")), "")
    return [OllamaInstance(ollama_url(host), "service", SERVICE_UNIT, int(fields.get("MainPID") or 0))]


def _container_instances(context: Context) -> list[OllamaInstance]:
    instances = []
    for container in containers.list_running(context):
        image = without_digest(str(container.get("Image", "")))
        if image.rpartition("/")[2].partition(":")[0] == "ollama" or IMAGE in image:
            name = containers.name_of(container)
            instances.append(OllamaInstance(container_url(container), "container", name))
    return instances


def container_url(container: dict[str, Any]) -> str:
    """Return the URL of a container's Ollama: a published port, or else the container's address on Docker's network.

    Args:
        container: the container's entry in Docker's list.
    """
    for port in container.get("Ports") or ():
        if port.get("PrivatePort") == OLLAMA_PORT and port.get("PublicPort"):
            address = str(port.get("IP") or "")
            return ollama_url(f"{f'[{address}]' if ':' in address else address}:{port['PublicPort']}")
    networks = ((container.get("NetworkSettings") or {}).get("Networks") or {}).values()
    return ollama_url(next((network["IPAddress"] for network in networks if network.get("IPAddress")), ""))


def _process_instances() -> list[OllamaInstance]:
    """Return the `ollama serve` processes of all users, with the default URL if their environment cannot be read."""
    import psutil

    instances = []
    for process in psutil.process_iter(["pid", "name", "cmdline", "username"]):
        pid, arguments = process.info["pid"], process.info["cmdline"] or []
        if process.info["name"] != "ollama" or "serve" not in arguments[1:2] or gpu_processes.find_container_id(pid):
            continue
        try:
            host = process.environ().get("OLLAMA_HOST", "")
        except psutil.Error:
            host = ""
        name = f"user {process.info['username']}, pid {pid}"
        instances.append(OllamaInstance(ollama_url(host), "process", name, pid))
    return instances


class OllamaAbsent(Exception):
    """No Ollama runs at this URL, which is not an error."""


class OllamaBusy(Exception):
    """Ollama did not answer in time, or sent an invalid response."""


def format_size(size_bytes: int | None) -> str:
    return f"{format_gib(size_bytes)} GiB" if size_bytes else "size unknown"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    name: str
    #: None if unknown
    size_bytes: int | None
    #: tokens; 0 if unknown
    context_length: int = 0
    #: True if the model stays loaded until a request unloads it
    pinned: bool = False

    @classmethod
    def parse_row(cls, row: dict[str, Any]) -> LoadedModel:
        """Parse a row of /api/ps. A model with a negative keep_alive has an expiry date centuries away."""
        year = str(row.get("expires_at", ""))[:4]
        is_pinned = year.isdigit() and int(year) > time.gmtime().tm_year + 10
        size_bytes, length = bounds.count_or_none(row.get("size")), bounds.count_or_none(row.get("context_length"))
        return cls(str(row["name"]), size_bytes or None, length or 0, is_pinned)

    @property
    def size_text(self) -> str:
        return format_size(self.size_bytes)


@dataclass(frozen=True, slots=True)
class Ollama:
    """A client of an Ollama instance."""

    #: such as http://127.0.0.1:11434
    url: str
    #: time limit for each request
    timeout_s: float = 5

    def version(self) -> str:
        """Return Ollama's version. Raises OllamaAbsent or OllamaBusy."""
        return str(self._query("/api/version").get("version", ""))

    def list_loaded(self) -> list[LoadedModel]:
        """Return the models in memory. Raises OllamaAbsent or OllamaBusy."""
        rows = self._query("/api/ps").get("models")
        if not isinstance(rows, list):
            return []
        return [LoadedModel.parse_row(row) for row in rows[:MAX_MODELS] if _is_model(row)]

    def unload(self, name: str) -> None:
        """Ask Ollama to unload a model, without waiting until it has. Raises OllamaAbsent or OllamaBusy."""
        self._query("/api/generate", {"model": name, "keep_alive": 0})

    def load(self, model: LoadedModel) -> bool:
        """Load a model with its former context length and pinning, and wait. Returns False if it is no longer installed.

        Raises OllamaAbsent or OllamaBusy.
        """
        options = {"options": {"num_ctx": model.context_length}} if model.context_length else {}
        keep_alive = {"keep_alive": -1} if model.pinned else {}
        return bool(self._query("/api/generate", {"model": model.name, "stream": False, **options, **keep_alive}))

    def _query(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json"}
        try:
            url = self.url.rstrip("/") + path
            response = http.request(
                "POST" if data else "GET", url, body=data, headers=headers, timeout_s=self.timeout_s
            )
            if response.status == 404:
                return {}
            if response.status != 200:
                raise OllamaBusy(f"HTTP {response.status}")
            response_data = response.json() if response.body else {}
        except TimedOut:
            raise OllamaBusy("timed out") from None
        except InvalidAnswer as error:
            raise OllamaBusy(f"it {error}") from None
        except TransportError as error:
            raise OllamaAbsent(f"it {error}") from None
        return response_data if isinstance(response_data, dict) else {}


def _is_model(row: Any) -> bool:
    name = row.get("name") if isinstance(row, dict) else None
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS


@dataclass(frozen=True, slots=True)
class HeldModel:
    """A loaded model and its Ollama instance."""

    instance: OllamaInstance
    model: LoadedModel


@dataclass(frozen=True, slots=True)
class OllamaState:
    """The Ollama instances on this host, and their loaded models."""

    #: models in memory
    held_models: tuple[HeldModel, ...]
    #: all running instances, including hanging ones
    running_instances: tuple[OllamaInstance, ...]
    #: instances that did not answer in time, because they load a model or are stuck
    hanging_instances: tuple[OllamaInstance, ...]

    @property
    def is_empty(self) -> bool:
        """True if no model is listed and no instance hangs. Models may still hold memory for a moment."""
        return not self.held_models and not self.hanging_instances


def inspect(context: Context, *, timeout_s: float = 5) -> OllamaState:
    """Query all Ollama instances on this host. An OLLAMA_HOST on another machine is skipped."""
    held_models: list[HeldModel] = []
    running_instances, hanging_instances = [], []
    for instance in list_instances(context):
        if instance.kind == "address" and not is_local(instance.url):
            continue
        try:
            models = Ollama(instance.url, timeout_s=timeout_s).list_loaded()
        except OllamaAbsent:
            continue
        except OllamaBusy:
            hanging_instances.append(instance)
        else:
            held_models += [HeldModel(instance, model) for model in models]
        running_instances.append(instance)
    return OllamaState(tuple(held_models), tuple(running_instances), tuple(hanging_instances))


def unload_all(context: Context, *, timeout_s: float) -> OllamaState:
    """Unload all models, and wait. Requests are repeated, because Ollama ignores them while a model loads.

    Returns the state once nothing is loaded, or after timeout_s.
    """
    deadline_s = time.monotonic() + timeout_s
    requested_at_s: dict[str, float] = {}
    max_held_count = 0
    while True:
        state = inspect(context, timeout_s=max(0.5, min(5.0, deadline_s - time.monotonic())))
        max_held_count = max(max_held_count, len(state.held_models))
        if state.is_empty or time.monotonic() > deadline_s:
            return state
        _request_unload(state.held_models, requested_at_s)
        context.progress(max_held_count - len(state.held_models), max_held_count, text="unloading Ollama's models")
        time.sleep(POLL_S)


def _request_unload(held_models: Sequence[HeldModel], requested_at_s: dict[str, float]) -> None:
    """Ask Ollama to unload these models, except those it was asked to unload less than UNLOAD_RETRY_INTERVAL_S ago.

    Args:
        requested_at_s: time of the last request for each model; updated in place.
    """
    for held_model in held_models:
        key = f"{held_model.instance.url} {held_model.model.name}"
        if time.monotonic() - requested_at_s.get(key, -UNLOAD_RETRY_INTERVAL_S) < UNLOAD_RETRY_INTERVAL_S:
            continue
        requested_at_s[key] = time.monotonic()
        try:
            Ollama(held_model.instance.url).unload(held_model.model.name)
        except (OllamaAbsent, OllamaBusy):
            continue  # the next list shows whether the model is unloaded


def is_local(url: str) -> bool:
    """Return True if a URL points to this host, so that the models of the Ollama there are in this host's memory."""
    import psutil

    addresses = resolve_host(urlsplit(url).hostname or "127.0.0.1", LOOKUP_TIMEOUT_S)
    interfaces = psutil.net_if_addrs().values()
    local_addresses = {entry.address.partition("%")[0] for entries in interfaces for entry in entries}
    return bool(addresses & local_addresses) or any(
        str(address).startswith("127.") or address == "::1" for address in addresses
    )
