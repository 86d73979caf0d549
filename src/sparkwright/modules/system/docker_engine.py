"""Modules about the Docker Engine itself: its readiness, and its port forwarders."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from sparkwright.errors import Failed, Refused
from sparkwright.host.containers import containers, port_forwarders
from sparkwright.host.containers.port_forwarders import Forwarder
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.visible import first

POLL_S = 0.25


class DockerReady(Module["DockerReady.Args"]):
    """The Docker Engine answers. One that is being restarted, by an update say, is waited for.

    Returns: waited_s. Fails after timeout_s.
    """

    @dataclass(frozen=True)
    class Args:
        timeout_s: float = arg("how long it may take to answer, seconds", default=120.0)

    def run(self, args: Args, context: Context) -> Result:
        started_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - started_s
            if _answers(context):
                msg = f"after {waited_s:.1f} s" if waited_s > POLL_S else ""
                return Result(msg=msg, data={"waited_s": round(waited_s, 2)})
            if waited_s > args.timeout_s or context.check:
                fix = "On the host: `sudo systemctl start docker` (and `systemctl status docker` for why it is down)."
                raise Failed(f"no answer from the Docker Engine for {waited_s:.0f} s.", fix=fix)
            context.progress(0, text=f"waiting for the Docker Engine, {waited_s:.0f} s")
            time.sleep(POLL_S)


def _answers(context: Context) -> bool:
    try:
        return bool(context.docker().ping())
    except Exception:  # the client raises various errors while the engine stops or starts
        return False


#: how long a forwarder is watched before it counts as left behind, seconds: a container that is starting has its port by then
SETTLE_S = 2.0
RESTART_S = 180


@dataclass(frozen=True, slots=True)
class PortForwarderFound:
    """A forwarder that holds the port for no container."""

    #: None if there is none
    forwarder: Forwarder | None
    #: names of the running containers
    running: tuple[str, ...] = ()


class PortForwarder(StateModule["PortForwarder.Args", PortForwarderFound]):
    """No port forwarder that Docker left behind holds the server's port: the Docker Engine is restarted, and waited for.

    After a loss of power in the moment of a start, Docker Engine 20.10 comes back with a docker-proxy for a container that never
    ran. Only a restart of the engine ends it, and that may stop what runs: it is restarted only with `restart`, as root (`become:
    true`, or sudo without a password), and where no container runs.

    Returns: freed. Refused, with the command to type, without `restart`, while containers run, and without root.
    """

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg("the server, as http://127.0.0.1:8000; empty for one that publishes no port", default="")
        restart: bool = arg("whether the engine may be restarted", default=False)

    def read(self, args: Args, context: Context) -> PortForwarderFound:
        port = urlsplit(args.base_url).port or 0
        forwarder = _left_behind(port, context) if port and not context.machine.sandbox else None
        if forwarder is None:
            return PortForwarderFound(None)
        return PortForwarderFound(
            forwarder, tuple(row["Names"][0].lstrip("/") for row in context.docker().api.containers())
        )

    def differences(self, args: Args, found: PortForwarderFound) -> list[Change]:
        return [Change(f"port {found.forwarder.port}", str(found.forwarder), None)] if found.forwarder else []

    def describe(self, args: Args, found: PortForwarderFound) -> dict[str, Any]:
        if found.forwarder is None:
            return {"freed": False}
        why = f"port {found.forwarder.port} is in use by {found.forwarder}, which serves nobody"
        if found.running:
            stops = f"{first(found.running, 3)} {'runs' if len(found.running) == 1 else 'run'}"
            raise Refused(f"{why}, and {stops}.", fix=f"When that may be stopped: {port_forwarders.FIX}.")
        if not args.restart:
            raise Refused(f"{why}.", fix=f"{port_forwarders.FIX}; with `restart_docker: true` this is done here.")
        return {"freed": False, "msg": "the Docker Engine is restarted"}

    def act(self, args: Args, found: PortForwarderFound, changes: list[Change], context: Context) -> dict[str, Any]:
        systemctl = ["systemctl", "restart", "docker"]
        argv = systemctl if os.geteuid() == 0 else ["sudo", "-n", *systemctl]
        answer = context.machine.run(argv, timeout_s=RESTART_S)
        if not answer.ok:
            raise Refused(
                f"cannot restart Docker: {(answer.err or answer.out).strip()}.", fix=f"{port_forwarders.FIX}."
            )
        DockerReady().run(DockerReady.Args(), context)
        port = changes[0].field.removeprefix("port ")
        if left := port_forwarders.of_port(int(port)):
            raise Failed(f"port {port} is still in use by {left}.", fix="Reboot the host.")
        return {"freed": True, "msg": f"port {port} is free: the Docker Engine was restarted"}


def _left_behind(port: int, context: Context) -> Forwarder | None:
    """Return the forwarder of a port that no running container publishes, once that has been so for a moment."""
    until_s = time.monotonic() + SETTLE_S
    while True:
        found = port_forwarders.of_port(port)
        if found is None or containers.publishing(context.docker(), port) is not None:
            return None
        if time.monotonic() > until_s:
            return found
        time.sleep(0.2)
