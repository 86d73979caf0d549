"""A host without a scheduled check, looked at now: its container and /health. Neither proves that it generates."""

from __future__ import annotations

from typing import Any

from sparkwright.engine import endpoints
from sparkwright.errors import SparkwrightError
from sparkwright.health.judge import Limits
from sparkwright.health.looking import Looker, container_of
from sparkwright.health.record import Container, Record, Server
from sparkwright.health.remembered import Remembered
from sparkwright.host import http_probe
from sparkwright.host.containers import containers
from sparkwright.host.machine import Machine
from sparkwright.host.records import good_states
from sparkwright.host.state import StateFolder
from sparkwright.runner.context import RunContext

HEALTH_S = 2.0
#: a start may take twice the last one's time
START_S = 900.0


def look(machine: Machine, state: StateFolder, name: str, now_s: float, busy: str) -> dict[str, Any]:
    """A record as JSON, whose state is what a look can say: up, starting, down, unknown. name: of the container, when no
    server was verified here."""
    context = RunContext(machine, state, "status", emit=lambda event: None)
    good = good_states.last(state)
    name = (good.get("spec") or {}).get("name", "") or name
    looker = Looker(context, Remembered(), Limits())
    box, url, error = _container(context, name, str(good.get("container_id", "")))
    server = (
        Server(url, health_status=http_probe.ask(url, endpoints.HEALTH, timeout_s=HEALTH_S).status) if url else Server()
    )
    expected_s = 2 * float((good.get("measured") or {}).get("ready_s") or START_S)
    seen, why = _judged(box, server, error, now_s, expected_s)
    found = Record(
        *(now_s, "unknown", "unknown", now_s),
        why=why,
        busy=busy,
        container=box,
        server=server,
        serves=looker.serves,
        sandbox=machine.sandbox,
    )
    return {**found.to_json(), "state": seen, "seen": seen}


def _container(context: RunContext, name: str, verified_id: str) -> tuple[Container, str, str]:
    """(the container, where it answers, why nothing is known)."""
    if not name:
        return Container(), "", "nothing was deployed here, and the host has no recipe"
    try:
        inspected = containers.inspect(context.docker(), name)
    except SparkwrightError as error:
        return Container(name), "", error.message
    except Exception as error:  # requests' and docker's own: an engine that hangs or answers nonsense
        return Container(name), "", f"the Docker Engine does not answer: {type(error).__name__}"
    if inspected is None:
        return Container(name, status="absent"), "", ""
    return container_of(inspected, verified_id), containers.url_of(inspected), ""


def _judged(box: Container, server: Server, error: str, now_s: float, expected_s: float) -> tuple[str, str]:
    if error:
        return "unknown", error
    if box.status == "absent":
        return "down", f"there is no container {box.name}"
    if box.status != "running":
        restarts = f", {box.restarts} restarts" if box.restarts else ""
        return "down", f"container {box.name} is {box.status} (exit code {box.exit_code}{restarts})"
    if server.health_status == 200:
        return "up", "it runs and /health answers, which does not prove that it generates"
    runs_s = now_s - (box.started_s or now_s)
    said = f"/health answers {server.health_status}" if server.health_status else "/health does not answer"
    if runs_s < expected_s:
        return "starting", f"{said} yet; it runs for {runs_s:.0f} s of {expected_s:.0f}"
    return "down", f"{said}, and it runs for {runs_s:.0f} s"
