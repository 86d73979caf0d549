"""A snapshot of a server, taken in a tenth of a second: the container and /health.

Neither proves that the server generates, but the record of a check stays valid only while both are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines import http as roles
from sparkwright.engines.http import Http
from sparkwright.errors import SparkwrightError
from sparkwright.health.record import FILE, Container, Record, Serves, speaks_s
from sparkwright.host import nvidia_smi
from sparkwright.host.containers import container_labels, container_options, containers, engine_socket
from sparkwright.host.machine import Machine
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context
from sparkwright.host.records import good_states
from sparkwright.protocol.container import ContainerSpec
from sparkwright.transport.connection import TransportError
from sparkwright.transport.http import request

TRAFFIC = (roles.RUNNING, roles.WAITING, roles.GENERATED)
TEMPERATURE_S = 2.0
ENGINE_S = 3.0
HEALTH_S = 2.0
#: states that are only valid at the moment of the check, because a start proceeds and a failure may be over
MOMENTARY = ("starting", "unknown")


@dataclass(frozen=True, slots=True)
class Now:
    """A snapshot of a server."""

    time_s: float
    container: Container = field(default_factory=Container)
    url: str = ""
    #: HTTP status of /health; 0 if nothing answered
    health_status: int | None = None
    #: reason why nothing is known
    error: str = ""
    #: see `Observation`
    loading: bool = False


def inspect(machine: Machine, good: Mapping[str, Any], name: str, now_s: float) -> Now:
    """Inspect the container and request /health.

    Args:
        good: the last verified state.
        name: name of the container, if nothing was verified.
    """
    name = str((good.get("spec") or {}).get("name", "") or name)
    if not name:
        return Now(now_s, error="nothing has been deployed here, and the host has no recipe")
    try:
        verified = str(good.get("container_id") or "")
        inspected = _inspect(machine, name)
        if inspected is None and verified:
            inspected = _inspect(machine, verified)  # it was renamed
        if inspected is None:
            return Now(now_s, Container(name, status="absent"))
        box, url = container_of(inspected, verified), containers.url_of(inspected)
    except SparkwrightError as error:
        return Now(now_s, Container(name), error=error.message)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return Now(now_s, Container(name), error=f"invalid response from the Docker Engine: {type(error).__name__}")
    if box.status != "running" or not url:
        return Now(now_s, box, url)
    http = container_labels.engine_of_container(inspected).http
    status = _health(http, url)
    return Now(now_s, box, url, status, loading=status in http.loading)


def traffic(good: Mapping[str, Any], now: Now) -> dict[str, float]:
    """Return the running and waiting requests and generated tokens, by role; empty if the server requires a key for them."""
    http = container_labels.engine_of_spec(good.get("spec")).http
    if not http.metrics or not now.health_status:
        return {}
    try:
        answer = request("GET", now.url.rstrip("/") + http.metrics, timeout_s=HEALTH_S)
    except TransportError:
        return {}
    counters = http.counters(answer.text) if answer.status == 200 else {}
    return {role: counters[role] for role in TRAFFIC if role in counters}


def temperature(machine: Machine) -> dict[str, float]:
    """Return the GPU's current temperature as `temperature_c`; empty if nvidia-smi does not report it quickly."""
    found = nvidia_smi.figures(nvidia_smi.ask(machine, ("temperature_c",), timeout_s=TEMPERATURE_S), ("temperature_c",))
    return {value: figure for value, figure in found.items() if figure is not None}


def ready_since(box: Container, good: Mapping[str, Any]) -> bool:
    """Return True if the server was verified since its last start, so that it is not starting if it does not answer now."""
    return good.get("container_id") == box.id and float(good.get("since") or 0) > (box.started_s or 0.0) > 0


def ready_s(good: Mapping[str, Any]) -> float | None:
    """Return how long the verified start took, in seconds; None if it was not measured."""
    measured = (good.get("measured") or {}).get("ready_s")
    return None if measured is None else float(measured)


def outdated(record: Record, now: Now, good: Mapping[str, Any]) -> str:
    """Return the reason why a check is no longer valid; empty if it is valid."""
    was, box = record.container, now.container
    if not record.every_s and not 0 <= now.time_s - record.time_s < speaks_s(0):
        return "no check in the last 10 minutes"
    if float(good.get("since") or 0) > record.time_s:
        return "no check since the last deploy"
    if (was.id, was.started_s) != (box.id, box.started_s):
        return "no check since the container was started"
    if was.status != box.status or (record.server.health_status == 200) != (now.health_status == 200):
        return "no check since that changed"
    again = bool(was.restarts) and not record.server.health_status  # Docker is restarting it
    return "no check since" if record.state in MOMENTARY or record.busy or again else ""


def serves_of(good: Mapping[str, Any]) -> Serves:
    """Return the image and model of the last verified state."""
    model, spec = good.get("model") or {}, good.get("spec") or {}
    return Serves(
        image=spec.get("image", ""),
        model=model.get("id", ""),
        commit=model.get("commit", ""),
        served_name=(good.get("serve") or {}).get("served_name", ""),
        since_s=good.get("since"),
    )


def container_of(inspected: Mapping[str, Any], verified_id: str) -> Container:
    """Return the recorded fields of an inspected container. verified_id: id of the last good state's container."""
    state = inspected["State"]
    return Container(
        name=inspected["Name"].lstrip("/"),
        id=inspected["Id"],
        status=state["Status"],
        restarts=int(inspected.get("RestartCount", 0)),
        policy=inspected["HostConfig"]["RestartPolicy"]["Name"] or "no",
        exit_code=None if state["Status"] == "running" else state.get("ExitCode"),
        started_s=containers.moment(str(state.get("StartedAt") or "")),
        finished_s=containers.moment(str(state.get("FinishedAt") or "")),
        verified=inspected["Id"] == verified_id,
    )


def _inspect(machine: Machine, name: str) -> dict[str, Any] | None:
    if engine_socket.speaks(machine.docker_host):
        return engine_socket.inspect(machine.docker_host, name, ENGINE_S)
    from sparkwright.host.runs.context import Engine

    try:
        return containers.inspect(Engine(machine, timeout_s=int(ENGINE_S)).client(), name)
    except OSError as error:
        raise SparkwrightError(engine_socket.silent(error)) from None


def _health(http: Http, url: str) -> int:
    """Return the HTTP status of /health; 0 if there is no answer."""
    try:
        return request("GET", url.rstrip("/") + http.health, timeout_s=HEALTH_S).status
    except TransportError:
        return 0


def drift_found(context: Context, good: Mapping[str, Any], inspected: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields and files that differ from the last verified state. Raises as Docker's client does."""
    if not good["spec"].get("image"):
        return ("image",)  # the verified state is damaged, so no server can match it
    spec = ContainerSpec.from_json(good["spec"])
    image = containers.image_of(context.docker(), inspected)
    fields = [difference.field for difference in container_options.differences(spec, inspected, image)]
    if inspected["Id"] == good.get("container_id"):  # a container's image can't change, but the image's names can
        fields = [field for field in fields if field != "image"]
    name = str(inspected["Name"]).lstrip("/")
    fields = ["name", *fields] if name != spec.name else fields  # it was renamed
    return (*dict.fromkeys(fields), *(f"{FILE}{path}" for path in changed_files(context, good)))


def changed_files(context: Context, good: Mapping[str, Any]) -> list[str]:
    """Return the files of the server's models that differ from the verified ones, according to one stat per file."""
    found = []
    for model in good_states.models_of(good):
        if folder := model.get("dir"):
            role = f"{model['role']}: " if model.get("role") else ""
            changed = Manifest.of(context.state, context.machine.expand(folder)).changed()
            found += [f"{role}{path}" for path in changed]
    return found
