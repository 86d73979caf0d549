"""A snapshot of a server's container and /health, which takes a tenth of a second.

It does not prove that the server generates. A check remains valid only while both are unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sparkwright.engines import http as engine_http
from sparkwright.engines.http import Http
from sparkwright.errors import SparkwrightError
from sparkwright.health.record import MODEL_FILE_PREFIX, Container, Record, Serves, validity_s
from sparkwright.host import nvidia_smi
from sparkwright.host.containers import container_labels, container_options, containers, engine_socket
from sparkwright.host.machine import Machine
from sparkwright.host.models.manifest import Manifest
from sparkwright.host.module import Context
from sparkwright.host.records import verified_states
from sparkwright.host.records.verified_states import VerifiedState
from sparkwright.protocol.container import ContainerSpec
from sparkwright.transport.connection import TransportError
from sparkwright.transport.http import request

TRAFFIC_ROLES = (engine_http.RUNNING, engine_http.WAITING, engine_http.GENERATED)
TEMPERATURE_TIMEOUT_S = 2.0
DOCKER_TIMEOUT_S = 3.0
HEALTH_TIMEOUT_S = 2.0
#: states that are valid only at the moment of the check, because the cause may end at any time
MOMENTARY_STATES = ("starting", "unknown")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a container and its /health at one moment."""

    #: seconds since the epoch
    time_s: float
    container: Container = field(default_factory=Container)
    url: str = ""
    #: HTTP status of /health; 0 if nothing answered, None if it was not requested
    health_status: int | None = None
    #: reason why the container could not be inspected
    error: str = ""
    #: see `Observation`
    loading: bool = False


def inspect(machine: Machine, verified_state: VerifiedState, name: str, now_s: float) -> Snapshot:
    """Inspect the container and request /health.

    Args:
        verified_state: the last verified state.
        name: name of the container if no server was verified.
    """
    name = verified_state.spec.get("name") or name
    if not name:
        return Snapshot(now_s, error="no server has been deployed on this host, and the host has no recipe")
    try:
        verified_id = verified_state.container_id
        inspected = _inspect_container(machine, name)
        if inspected is None and verified_id:
            inspected = _inspect_container(machine, verified_id)  # it was renamed
        if inspected is None:
            return Snapshot(now_s, Container(name, status="absent"))
        container, url = parse_container(inspected, verified_id), containers.url_of(inspected)
    except SparkwrightError as error:
        return Snapshot(now_s, Container(name), error=error.message)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"invalid response from the Docker Engine: {type(error).__name__}"
        return Snapshot(now_s, Container(name), error=message)
    if container.status != "running" or not url:
        return Snapshot(now_s, container, url)
    http = container_labels.engine_of_container(inspected).http
    status = _query_health(http, url)
    return Snapshot(now_s, container, url, status, loading=status in http.loading_statuses)


def read_traffic(verified_state: VerifiedState, snapshot: Snapshot) -> dict[str, float]:
    """Return the running and waiting requests and generated tokens, by role; empty if the server does not report them."""
    http = container_labels.engine_of_spec(verified_state.spec).http
    if not http.metrics_path or not snapshot.health_status:
        return {}
    try:
        response = request("GET", snapshot.url.rstrip("/") + http.metrics_path, timeout_s=HEALTH_TIMEOUT_S)
    except TransportError:
        return {}
    counters = http.counters(response.text) if response.status == 200 else {}
    return {role: counters[role] for role in TRAFFIC_ROLES if role in counters}


def read_temperature(machine: Machine) -> dict[str, float]:
    """Return the GPU's temperature as `temperature_c`; empty if nvidia-smi does not report it within the time limit."""
    names = ("temperature_c",)
    figures = nvidia_smi.parse_figures(nvidia_smi.query_gpu(machine, names, timeout_s=TEMPERATURE_TIMEOUT_S), names)
    return {name: figure for name, figure in figures.items() if figure is not None}


def is_verified_since_start(container: Container, verified_state: VerifiedState) -> bool:
    """Return True if the server was verified after its last start, and so is no longer starting even if it does not answer."""
    return verified_state.container_id == container.id and verified_state.since > (container.started_s or 0.0) > 0


def ready_s(verified_state: VerifiedState) -> float | None:
    """Return how long the verified start took, in seconds; None if it was not measured."""
    measured = verified_state.measured.get("ready_s")
    return None if measured is None else float(measured)


def outdated_reason(record: Record, snapshot: Snapshot, verified_state: VerifiedState) -> str:
    """Return the reason why a check is no longer valid; empty if it is valid."""
    recorded_container, container = record.container, snapshot.container
    if not record.every_s and not 0 <= snapshot.time_s - record.time_s < validity_s(0):
        return "no check in the last 10 minutes"
    if verified_state.since > record.time_s:
        return "no check since the last deploy"
    if (recorded_container.id, recorded_container.started_s) != (container.id, container.started_s):
        return "no check since the container was started"
    if recorded_container.status != container.status or (record.server.health_status == 200) != (
        snapshot.health_status == 200
    ):
        return "no check since the container's status or /health changed"
    is_restarting = bool(recorded_container.restarts) and not record.server.health_status  # Docker is restarting it
    return "no newer check" if record.state in MOMENTARY_STATES or record.busy or is_restarting else ""


def build_serves(verified_state: VerifiedState) -> Serves:
    """Return the image and model of a verified state."""
    model, spec = verified_state.model, verified_state.spec
    return Serves(
        image=spec.get("image", ""),
        model=model.get("id") or "",
        commit=model.get("commit") or "",
        served_name=verified_state.serve.get("served_name", ""),
        since_s=verified_state.since or None,
    )


def parse_container(inspected: Mapping[str, Any], verified_id: str) -> Container:
    """Return the recorded fields of an inspected container. verified_id: id of the last verified container."""
    state = inspected["State"]
    return Container(
        name=containers.name_of(inspected),
        id=inspected["Id"],
        status=state["Status"],
        restarts=int(inspected.get("RestartCount", 0)),
        policy=inspected["HostConfig"]["RestartPolicy"]["Name"] or "no",
        exit_code=None if state["Status"] == "running" else state.get("ExitCode"),
        started_s=containers.parse_time(str(state.get("StartedAt") or "")),
        finished_s=containers.parse_time(str(state.get("FinishedAt") or "")),
        verified=inspected["Id"] == verified_id,
    )


def _inspect_container(machine: Machine, name: str) -> dict[str, Any] | None:
    if engine_socket.is_supported(machine.docker_host):
        return engine_socket.inspect(machine.docker_host, name, DOCKER_TIMEOUT_S)
    from sparkwright.host.runs.context import DockerEngine

    try:
        return containers.inspect(DockerEngine(machine, timeout_s=int(DOCKER_TIMEOUT_S)).client(), name)
    except OSError as error:
        raise SparkwrightError(engine_socket.no_answer_message(error)) from None


def _query_health(http: Http, url: str) -> int:
    """Return the HTTP status of /health; 0 if there is no answer."""
    try:
        return request("GET", url.rstrip("/") + http.health_path, timeout_s=HEALTH_TIMEOUT_S).status
    except TransportError:
        return 0


def find_drift(context: Context, verified_state: VerifiedState, inspected: dict[str, Any]) -> tuple[str, ...]:
    """Return the fields and files that differ from the last verified state. Raises the errors of Docker's client."""
    if not verified_state.spec.get("image"):
        return ("image",)  # the verified state is damaged, so no container can match it
    spec = ContainerSpec.from_json(verified_state.spec)
    image = containers.image_of(context.docker(), inspected)
    fields = [difference.field for difference in container_options.differences(spec, inspected, image)]
    if inspected["Id"] == verified_state.container_id:
        # a container's image never changes, only the tags of images do
        fields = [field for field in fields if field != "image"]
    name = containers.name_of(inspected)
    if name != spec.name:
        fields = ["name", *fields]
    return (
        *dict.fromkeys(fields),
        *(f"{MODEL_FILE_PREFIX}{path}" for path in list_changed_files(context, verified_state)),
    )


def list_changed_files(context: Context, verified_state: VerifiedState) -> list[str]:
    """Return the files of the server's models whose stamp (size, times, inode) differs from the verified one."""
    files = []
    for model in verified_states.models_of(verified_state.model):
        if folder := model.get("dir"):
            prefix = f"{model['role']}: " if model.get("role") else ""
            changed_paths = Manifest.load(context.state, context.machine.expand(folder)).changed_files()
            files += [f"{prefix}{path}" for path in changed_paths]
    return files
