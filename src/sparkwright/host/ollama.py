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
from sparkwright.transport.connection import InvalidAnswer, TimedOut, TransportError, lookup
from sparkwright.trust import bounds
from sparkwright.trust.image_name import tagged
from sparkwright.units import gib

if TYPE_CHECKING:
    from sparkwright.host.machine import Machine


SERVICE = "ollama.service"
IMAGE = "ollama/ollama"

Kind = Literal["service", "container", "process", "address"]


@dataclass(frozen=True, slots=True)
class Place:
    """An Ollama instance."""

    #: of its API
    url: str
    kind: Kind
    #: of the unit or container; for a process, its user and pid
    name: str
    pid: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.kind != "address" else self.url


def find(context: Context) -> list[Place]:
    """Return the Ollama instances that are visible on this host, one per address.

    The address in OLLAMA_HOST, or the default, is last and always included, whether or not anything answers there.
    """
    machine = context.machine
    named = Place(machine.ollama_url, "address", machine.ollama_url)
    if machine.sandbox:
        return [named]
    seen: dict[str, Place] = {}
    for place in (*_service(machine), *_containers(context), *_processes(), named):
        seen.setdefault(place.url, place)
    return list(seen.values())


def _service(machine: Machine) -> list[Place]:
    try:
        answer = machine.run(["systemctl", "show", SERVICE, "-p", "ActiveState,MainPID,Environment"], timeout_s=5)
    except SparkwrightError:
        return []
    fields = dict(line.partition("=")[::2] for line in answer.out.splitlines()) if answer.ok else {}
    if fields.get("ActiveState") not in ("active", "activating", "reloading"):
        return []
    given = (word.strip('"') for word in fields.get("Environment", "").split())
    host = next((word.partition("=")[2] for word in given if word.startswith("OLLAMA_HOST=")), "")
    return [Place(ollama_url(host), "service", SERVICE, int(fields.get("MainPID") or 0))]


def _containers(context: Context) -> list[Place]:
    found = []
    for row in containers.running_rows(context):
        image = tagged(str(row.get("Image", "")))
        if image.rpartition("/")[2].partition(":")[0] != "ollama" and IMAGE not in image:
            continue
        found.append(Place(url_of_container(row), "container", row["Names"][0].lstrip("/")))
    return found


def url_of_container(row: dict[str, Any]) -> str:
    """Return the URL of a container's Ollama: a published port, else its own address on the engine's network."""
    for port in row.get("Ports") or ():
        if port.get("PrivatePort") == OLLAMA_PORT and port.get("PublicPort"):
            address = str(port.get("IP") or "")
            return ollama_url(f"{f'[{address}]' if ':' in address else address}:{port['PublicPort']}")
    networks = ((row.get("NetworkSettings") or {}).get("Networks") or {}).values()
    return ollama_url(next((network["IPAddress"] for network in networks if network.get("IPAddress")), ""))


def _processes() -> list[Place]:
    """Return the `ollama serve` processes of any user; OLLAMA_HOST is readable for this user's only, else the default counts."""
    import psutil

    found = []
    for process in psutil.process_iter(["pid", "name", "cmdline", "username"]):
        words = process.info["cmdline"] or []
        if process.info["name"] != "ollama" or "serve" not in words[1:2] or in_container(process.info["pid"]):
            continue
        try:
            host = process.environ().get("OLLAMA_HOST", "")
        except psutil.Error:
            host = ""
        who = f"user {process.info['username']}, pid {process.info['pid']}"
        found.append(Place(ollama_url(host), "process", who, process.info["pid"]))
    return found


def in_container(pid: int) -> bool:
    """Return True if a process runs in a container of an engine on this host, by its cgroup."""
    return bool(gpu_processes.container_of(pid))


# A client of Ollama's API, as far as unloading needs it.
#
# Source: ollama's server code around v0.32.15: /api/ps and the unload call can block while a model loads, the unload only
# queues an expiry, and a busy model stays listed until its request ends.

#: a name with its registry, namespace and tag
NAME_CHARS = 500
#: limit of models in one list; Ollama keeps three per GPU
MODELS = 256


class Absent(Exception):
    """There is no Ollama at this URL, which is fine."""


class Busy(Exception):
    """Ollama does not answer in time, or not as expected."""


def in_gib(size_bytes: int | None) -> str:
    """Return a size in words; "size unknown" without one."""
    return f"{gib(size_bytes)} GiB" if size_bytes else "size unknown"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model in memory."""

    name: str
    #: None if unknown
    size_bytes: int | None
    #: tokens; 0 if unknown
    context_length: int = 0
    #: it never expires
    pinned: bool = False

    @classmethod
    def of(cls, row: dict[str, Any]) -> Loaded:
        """Parse a row of /api/ps. A negative keep_alive appears as an expiry centuries away."""
        year = str(row.get("expires_at", ""))[:4]
        pinned = year.isdigit() and int(year) > time.gmtime().tm_year + 10
        size, length = bounds.count_of(row.get("size")), bounds.count_of(row.get("context_length"))
        return cls(str(row["name"]), size or None, length or 0, pinned)

    @property
    def size_text(self) -> str:
        """The size in words."""
        return in_gib(self.size_bytes)


@dataclass(frozen=True, slots=True)
class Ollama:
    """An Ollama instance."""

    #: such as http://127.0.0.1:11434
    url: str
    #: of each call
    timeout_s: float = 5

    def version(self) -> str:
        """Return Ollama's version. Raises Absent or Busy."""
        return str(self._ask("/api/version").get("version", ""))

    def loaded(self) -> list[Loaded]:
        """Return the models in memory now. Raises Absent or Busy."""
        rows = self._ask("/api/ps").get("models")
        return [Loaded.of(row) for row in rows[:MODELS] if _is_model(row)] if isinstance(rows, list) else []

    def unload(self, name: str) -> None:
        """Request that a model is unloaded, which happens later. Raises Absent or Busy."""
        self._ask("/api/generate", {"model": name, "keep_alive": 0})

    def load(self, model: Loaded) -> bool:
        """Load a model as it was before, and wait until it is in memory. Returns False if it is no longer installed.

        Raises Absent or Busy.
        """
        options = {"options": {"num_ctx": model.context_length}} if model.context_length else {}
        keep = {"keep_alive": -1} if model.pinned else {}
        return bool(self._ask("/api/generate", {"model": model.name, "stream": False, **options, **keep}))

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = json.dumps(body).encode() if body is not None else None
        headers = {"Content-Type": "application/json"}
        try:
            url = self.url.rstrip("/") + path
            answer = http.request("POST" if data else "GET", url, body=data, headers=headers, timeout_s=self.timeout_s)
            if answer.status == 404:
                return {}
            if answer.status != 200:
                raise Busy(f"HTTP {answer.status}")
            found = answer.json() if answer.body else {}
        except TimedOut:
            raise Busy("timed out") from None
        except InvalidAnswer as error:
            raise Busy(f"it {error}") from None
        except TransportError as error:
            raise Absent(f"it {error}") from None
        return found if isinstance(found, dict) else {}


def _is_model(row: Any) -> bool:
    name = row.get("name") if isinstance(row, dict) else None
    return isinstance(name, str) and 0 < len(name) <= NAME_CHARS


POLL_S = 0.25
ASK_AGAIN_S = 3.0
LOOKUP_S = 5.0


@dataclass(frozen=True, slots=True)
class Held:
    """A model and the Ollama instance that holds it."""

    place: Place
    model: Loaded


@dataclass(frozen=True, slots=True)
class Seen:
    """The Ollama instances of this host, and the models that they hold."""

    #: all models listed
    held: tuple[Held, ...]
    #: instances that answered or hang
    present: tuple[Place, ...]
    #: instances that did not answer in time: they load a model, or are stuck
    hanging: tuple[Place, ...]

    @property
    def empty(self) -> bool:
        """True if no model is listed and no instance hangs; only memory proves that nothing is held."""
        return not self.held and not self.hanging


def inspect(context: Context, *, timeout_s: float = 5) -> Seen:
    """Query each Ollama instance of this host. If OLLAMA_HOST names another machine, that instance is skipped."""
    held: list[Held] = []
    present, hanging = [], []
    for place in find(context):
        if place.kind == "address" and not is_here(place.url):
            continue
        try:
            rows = Ollama(place.url, timeout_s=timeout_s).loaded()
        except Absent:
            continue
        except Busy:
            hanging.append(place)
        else:
            held += [Held(place, loaded) for loaded in rows]
        present.append(place)
    return Seen(tuple(held), tuple(present), tuple(hanging))


def unload(context: Context, *, timeout_s: float) -> Seen:
    """Unload all models, and repeat for those that stay: an unload request is lost while a model loads.

    Returns the models that are left after timeout_s, or none.
    """
    deadline_s = time.monotonic() + timeout_s
    asked_at_s: dict[str, float] = {}
    most = 0
    while True:
        seen = inspect(context, timeout_s=max(0.5, min(5.0, deadline_s - time.monotonic())))
        most = max(most, len(seen.held))
        if seen.empty or time.monotonic() > deadline_s:
            return seen
        _ask_to_go(seen.held, asked_at_s)
        context.progress(most - len(seen.held), most, text="unloading Ollama's models")
        time.sleep(POLL_S)


def _ask_to_go(held: Sequence[Held], asked_at_s: dict[str, float]) -> None:
    """Request that models are unloaded, unless requested recently.

    Args:
        asked_at_s: the last request for each model, seconds of the monotonic clock.
    """
    for usage in held:
        key = f"{usage.place.url} {usage.model.name}"
        if time.monotonic() - asked_at_s.get(key, -ASK_AGAIN_S) < ASK_AGAIN_S:
            continue
        asked_at_s[key] = time.monotonic()
        try:
            Ollama(usage.place.url).unload(usage.model.name)
        except (Absent, Busy):
            continue  # the next list shows the outcome


def is_here(url: str) -> bool:
    """Return True if a URL's host is this one: only then its models are in this host's memory."""
    import psutil

    name = urlsplit(url).hostname or "127.0.0.1"
    found = lookup(name, LOOKUP_S)
    own = {address.address.partition("%")[0] for rows in psutil.net_if_addrs().values() for address in rows}
    return bool(found & own) or any(str(item).startswith("127.") or item == "::1" for item in found)
