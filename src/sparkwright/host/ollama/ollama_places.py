"""The Ollama instances of this host: a service, a container, a user's process, or a configured address.

Sources: ollama's envconfig (OLLAMA_HOST: scheme, host, port 11434 unless the scheme is named); its install script (the unit
ollama.service); its image ollama/ollama (port 11434 inside).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sparkwright.errors import SparkwrightError
from sparkwright.host import gpu_processes
from sparkwright.host.containers import containers
from sparkwright.host.machine import OLLAMA_PORT, ollama_url
from sparkwright.trust.image_name import tagged

if TYPE_CHECKING:
    from sparkwright.host.machine import Machine
    from sparkwright.host.module import Context

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
