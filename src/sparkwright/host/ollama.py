"""The Ollama instances of this host, and the models that they hold in the memory shared by CPU and GPU.

An instance is a service, a container, a user's process, or a configured address. Sources: ollama's envconfig (OLLAMA_HOST:
scheme, host, port 11434 unless the scheme is named); its install script (the unit ollama.service); its image ollama/ollama (port
11434 inside).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from sparkwright.errors import SparkwrightError
from sparkwright.host import gpu_processes
from sparkwright.host.containers import containers
from sparkwright.host.machine import OLLAMA_PORT, ollama_url
from sparkwright.host.module import Context
from sparkwright.transport import http
from sparkwright.transport.connection import InvalidAnswer, TimedOut, TransportError, resolve_host
from sparkwright.trust import bounds
from sparkwright.trust.image_name import without_digest
from sparkwright.units import format_gib

if TYPE_CHECKING:
    from sparkwright.host.machine import Machine


SERVICE = "ollama.service"
IMAGE = "ollama/ollama"

Kind = Literal["service", "container", "process", "address"]


@dataclass(frozen=True, slots=True)
class OllamaInstance:
    """An Ollama instance."""

    #: of its API
    url: str
    kind: Kind
    #: of the unit or container; for a process, its user and pid
    name: str
    pid: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.kind != "address" else self.url


def list_instances(context: Context) -> list[OllamaInstance]:
    """Return the Ollama instances that are visible on this host, one per address.

    The address in OLLAMA_HOST, or the default, is last and always included, whether or not anything answers there.
    """
    machine = context.machine
    configured = OllamaInstance(machine.ollama_url, "address", machine.ollama_url)
    if machine.sandbox:
        return [configured]
    instances: dict[str, OllamaInstance] = {}
    for instance in (*_service_instances(machine), *_container_instances(context), *_process_instances(), configured):
        instances.setdefault(instance.url, instance)
    return list(instances.values())


def _service_instances(machine: Machine) -> list[OllamaInstance]:
    try:
        answer = machine.run(["systemctl", "show", SERVICE, "-p", "ActiveState,MainPID,Environment"], timeout_s=5)
    except SparkwrightError:
        return []
    fields = dict(line.partition("=")[::2] for line in answer.out.splitlines()) if answer.ok else {}
    if fields.get("ActiveState") not in ("active", "activating", "reloading"):
        return []
    variables = (word.strip('"') for word in fields.get("Environment", "").split())
    host = next((word.partition("=")[2] for word in variables if word.startswith("OLLAMA_HOST=")), "")
    return [OllamaInstance(ollama_url(host), "service", SERVICE, int(fields.get("MainPID") or 0))]


def _container_instances(context: Context) -> list[OllamaInstance]:
    instances = []
    for row in containers.list_running(context):
        image = without_digest(str(row.get("Image", "")))
        if image.rpartition("/")[2].partition(":")[0] != "ollama" and IMAGE not in image:
            continue
        instances.append(OllamaInstance(container_url(row), "container", row["Names"][0].lstrip("/")))
    return instances


def container_url(row: dict[str, Any]) -> str:
    """Return the URL of a container's Ollama: a published port, else its own address on the engine's network."""
    for port in row.get("Ports") or ():
        if port.get("PrivatePort") == OLLAMA_PORT and port.get("PublicPort"):
            address = str(port.get("IP") or "")
            return ollama_url(f"{f'[{address}]' if ':' in address else address}:{port['PublicPort']}")
    networks = ((row.get("NetworkSettings") or {}).get("Networks") or {}).values()
    return ollama_url(next((network["IPAddress"] for network in networks if network.get("IPAddress")), ""))


def _process_instances() -> list[OllamaInstance]:
    """Return the `ollama serve` processes of any user; OLLAMA_HOST is readable for this user's only, else the default counts."""
    import psutil

    instances = []
    for process in psutil.process_iter(["pid", "name", "cmdline", "username"]):
        words = process.info["cmdline"] or []
        if process.info["name"] != "ollama" or "serve" not in words[1:2] or is_in_container(process.info["pid"]):
            continue
        try:
            host = process.environ().get("OLLAMA_HOST", "")
        except psutil.Error:
            host = ""
        owner = f"user {process.info['username']}, pid {process.info['pid']}"
        instances.append(OllamaInstance(ollama_url(host), "process", owner, process.info["pid"]))
    return instances


def is_in_container(pid: int) -> bool:
    """Return True if a process runs in a container of an engine on this host, by its cgroup."""
    return bool(gpu_processes.find_container_id(pid))


# A client of Ollama's API, as far as unloading needs it.
#
# Source: ollama's server code around v0.32.15: /api/ps and the unload call can block while a model loads, the unload only
# queues an expiry, and a busy model stays listed until its request ends.

#: a name with its registry, namespace and tag
MAX_NAME_CHARS = 500
#: limit of models in one list; Ollama keeps three per GPU
MAX_MODELS = 256


class OllamaAbsent(Exception):
    """There is no Ollama at this URL, which is fine."""


class OllamaBusy(Exception):
    """Ollama does not answer in time, or not as expected."""


def format_size(size_bytes: int | None) -> str:
    """Return a size in words; "size unknown" without one."""
    return f"{format_gib(size_bytes)} GiB" if size_bytes else "size unknown"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory."""

    name: str
    #: None if unknown
    size_bytes: int | None
    #: tokens; 0 if unknown
    context_length: int = 0
    #: it never expires
    pinned: bool = False

    @classmethod
    def parse_row(cls, row: dict[str, Any]) -> LoadedModel:
        """Parse a row of /api/ps. A negative keep_alive appears as an expiry centuries away."""
        year = str(row.get("expires_at", ""))[:4]
        pinned = year.isdigit() and int(year) > time.gmtime().tm_year + 10
        size, length = bounds.count_or_none(row.get("size")), bounds.count_or_none(row.get("context_length"))
        return cls(str(row["name"]), size or None, length or 0, pinned)

    @property
    def size_text(self) -> str:
        """The size in words."""
        return format_size(self.size_bytes)


@dataclass(frozen=True, slots=True)
class Ollama:
    """An Ollama instance."""

    #: such as http://127.0.0.1:11434
    url: str
    #: of each call
    timeout_s: float = 5

    def version(self) -> str:
        """Return Ollama's version. Raises OllamaAbsent or OllamaBusy."""
        return str(self._query("/api/version").get("version", ""))

    def list_loaded(self) -> list[LoadedModel]:
        """Return the models in memory now. Raises OllamaAbsent or OllamaBusy."""
        rows = self._query("/api/ps").get("models")
        return (
            [LoadedModel.parse_row(row) for row in rows[:MAX_MODELS] if _is_model(row)]
            if isinstance(rows, list)
            else []
        )

    def unload(self, name: str) -> None:
        """Request that a model is unloaded, which happens later. Raises OllamaAbsent or OllamaBusy."""
        self._query("/api/generate", {"model": name, "keep_alive": 0})

    def load(self, model: LoadedModel) -> bool:
        """Load a model as it was before, and wait until it is in memory. Returns False if it is no longer installed.

        Raises OllamaAbsent or OllamaBusy.
        """
        options = {"options": {"num_ctx": model.context_length}} if model.context_length else {}
        keep = {"keep_alive": -1} if model.pinned else {}
        return bool(self._query("/api/generate", {"model": model.name, "stream": False, **options, **keep}))

    def _query(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json"}
        try:
            url = self.url.rstrip("/") + path
            answer = http.request("POST" if data else "GET", url, body=data, headers=headers, timeout_s=self.timeout_s)
            if answer.status == 404:
                return {}
            if answer.status != 200:
                raise OllamaBusy(f"HTTP {answer.status}")
            answer_data = answer.json() if answer.body else {}
        except TimedOut:
            raise OllamaBusy("timed out") from None
        except InvalidAnswer as error:
            raise OllamaBusy(f"it {error}") from None
        except TransportError as error:
            raise OllamaAbsent(f"it {error}") from None
        return answer_data if isinstance(answer_data, dict) else {}


def _is_model(row: Any) -> bool:
    name = row.get("name") if isinstance(row, dict) else None
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS


POLL_S = 0.25
UNLOAD_RETRY_S = 3.0
LOOKUP_S = 5.0


@dataclass(frozen=True, slots=True)
class HeldModel:
    """A model and the Ollama instance that holds it."""

    instance: OllamaInstance
    model: LoadedModel


@dataclass(frozen=True, slots=True)
class OllamaState:
    """The Ollama instances of this host, and the models that they hold."""

    #: all models listed
    held: tuple[HeldModel, ...]
    #: instances that answered or hang
    present: tuple[OllamaInstance, ...]
    #: instances that did not answer in time: they load a model, or are stuck
    hanging: tuple[OllamaInstance, ...]

    @property
    def empty(self) -> bool:
        """True if no model is listed and no instance hangs; only memory proves that nothing is held."""
        return not self.held and not self.hanging


def inspect(context: Context, *, timeout_s: float = 5) -> OllamaState:
    """Query each Ollama instance of this host. If OLLAMA_HOST names another machine, that instance is skipped."""
    held: list[HeldModel] = []
    present, hanging = [], []
    for instance in list_instances(context):
        if instance.kind == "address" and not is_local(instance.url):
            continue
        try:
            rows = Ollama(instance.url, timeout_s=timeout_s).list_loaded()
        except OllamaAbsent:
            continue
        except OllamaBusy:
            hanging.append(instance)
        else:
            held += [HeldModel(instance, loaded) for loaded in rows]
        present.append(instance)
    return OllamaState(tuple(held), tuple(present), tuple(hanging))


def unload_all(context: Context, *, timeout_s: float) -> OllamaState:
    """Unload all models, and repeat for those that stay: an unload request is lost while a model loads.

    Returns the models that are left after timeout_s, or none.
    """
    deadline_s = time.monotonic() + timeout_s
    requested_at_s: dict[str, float] = {}
    max_held = 0
    while True:
        state = inspect(context, timeout_s=max(0.5, min(5.0, deadline_s - time.monotonic())))
        max_held = max(max_held, len(state.held))
        if state.empty or time.monotonic() > deadline_s:
            return state
        _request_unload(state.held, requested_at_s)
        context.progress(max_held - len(state.held), max_held, text="unloading Ollama's models")
        time.sleep(POLL_S)


def _request_unload(held: Sequence[HeldModel], requested_at_s: dict[str, float]) -> None:
    """Request that models are unloaded, unless requested recently.

    Args:
        requested_at_s: the last request for each model, seconds of the monotonic clock.
    """
    for usage in held:
        key = f"{usage.instance.url} {usage.model.name}"
        if time.monotonic() - requested_at_s.get(key, -UNLOAD_RETRY_S) < UNLOAD_RETRY_S:
            continue
        requested_at_s[key] = time.monotonic()
        try:
            Ollama(usage.instance.url).unload(usage.model.name)
        except (OllamaAbsent, OllamaBusy):
            continue  # the next list shows the outcome


def is_local(url: str) -> bool:
    """Return True if a URL's host is this one: only then its models are in this host's memory."""
    import psutil

    name = urlsplit(url).hostname or "127.0.0.1"
    resolved = resolve_host(name, LOOKUP_S)
    own_addresses = {address.address.partition("%")[0] for rows in psutil.net_if_addrs().values() for address in rows}
    return bool(resolved & own_addresses) or any(str(item).startswith("127.") or item == "::1" for item in resolved)
