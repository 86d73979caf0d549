"""Modules for the Docker Engine, its port forwarders, and systemd units."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from sparkwright.errors import Failed, Refused
from sparkwright.host import files
from sparkwright.host.containers import containers, port_forwarders
from sparkwright.host.containers.port_forwarders import Forwarder
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.visible import join_first, one_line

POLL_S = 0.25

#: a starting container publishes its port within this time; a forwarder without a container counts as stale only after that
FORWARDER_SETTLE_S = 2.0
RESTART_TIMEOUT_S = 180

#: systemd.unit(5)
UNIT_NAME_PATTERN = re.compile(
    r"(?<![A-Za-z0-9:_.\\@-])[A-Za-z0-9:_.\\@-]{1,240}\.(?:service|socket|timer|mount|path|slice|target|swap|automount|device|scope)"
)
PROPERTIES = ("LoadState", "ActiveState", "UnitFileState", "Result")
STARTED_STATES = ("active", "activating", "reloading")
#: a Type=simple unit counts as started even if its program does not exist; its failure shows within this time
UNIT_SETTLE_S = 1.0
ENABLED_STATES = ("enabled", "enabled-runtime", "static", "alias", "generated", "indirect")


class DockerReady(Module["DockerReady.Args"]):
    """Wait until the Docker Engine answers, for example while an update restarts it.

    Returns: waited_s. Fails after timeout_s.
    """

    @dataclass(frozen=True)
    class Args:
        timeout_s: float = arg("time limit for its answer, seconds", default=120.0)

    def run(self, args: Args, context: Context) -> Result:
        started_s = time.monotonic()
        while True:
            waited_s = time.monotonic() - started_s
            if _is_docker_up(context):
                msg = f"after {waited_s:.1f} s" if waited_s > POLL_S else ""
                return Result(msg=msg, data={"waited_s": round(waited_s, 2)})
            if waited_s > args.timeout_s or context.check:
                fix = "On the host: `sudo systemctl start docker` (and `systemctl status docker` for why it is down)."
                raise Failed(f"the Docker Engine did not answer within {waited_s:.0f} s.", fix=fix)
            context.progress(0, text=f"waiting for the Docker Engine, {waited_s:.0f} s")
            time.sleep(POLL_S)


def _is_docker_up(context: Context) -> bool:
    try:
        return bool(context.docker().ping())
    except Exception:  # the client raises various errors while the engine stops or starts
        return False


@dataclass(frozen=True, slots=True)
class PortForwarderState:
    """The port's stale forwarder."""

    #: forwarder without a container; None if the port has none
    forwarder: Forwarder | None
    #: names of the running containers
    running_containers: tuple[str, ...] = ()


class PortForwarder(StateModule["PortForwarder.Args", PortForwarderState]):
    """Restart the Docker Engine if a stale port forwarder blocks the server's port.

    After a power loss during a start, Docker Engine 20.10 can keep a docker-proxy for a container that never ran. Only a
    restart of the Docker Engine ends it, and may stop running containers. So it is restarted only with `restart`, as root
    (`become: true`, or sudo without a password), and while no container is running. Otherwise the run is refused; the
    message contains the command to run.

    Returns: freed.
    """

    @dataclass(frozen=True)
    class Args:
        base_url: str = arg(
            "the server's URL, such as http://127.0.0.1:8000; empty if it publishes no port", default=""
        )
        restart: bool = arg("whether the Docker Engine may be restarted", default=False)

    def read(self, args: Args, context: Context) -> PortForwarderState:
        port = urlsplit(args.base_url).port or 0
        forwarder = _find_stale_forwarder(port, context) if port and not context.machine.sandbox else None
        if forwarder is None:
            return PortForwarderState(None)
        names = (containers.name_of(container) for container in context.docker().api.containers())
        return PortForwarderState(forwarder, tuple(names))

    def differences(self, args: Args, observed: PortForwarderState) -> list[Change]:
        return [Change(f"port {observed.forwarder.port}", str(observed.forwarder), None)] if observed.forwarder else []

    def describe(self, args: Args, observed: PortForwarderState) -> dict[str, Any]:
        if observed.forwarder is None:
            return {"freed": False}
        reason = f"port {observed.forwarder.port} is in use by {observed.forwarder}, which belongs to no container"
        if observed.running_containers:
            verb = "is running" if len(observed.running_containers) == 1 else "are running"
            fix = f"When it is safe to stop containers, run `{port_forwarders.RESTART_COMMAND}` on the host."
            raise Refused(f"{reason}, and {join_first(observed.running_containers, 3)} {verb}.", fix=fix)
        if not args.restart:
            raise Refused(f"{reason}.", fix=f"{port_forwarders.FIX}; `restart_docker: true` does that in a deploy.")
        return {"freed": False, "msg": "the Docker Engine is restarted"}

    def act(self, args: Args, observed: PortForwarderState, changes: list[Change], context: Context) -> dict[str, Any]:
        systemctl = ["systemctl", "restart", "docker"]
        argv = systemctl if os.geteuid() == 0 else ["sudo", "-n", *systemctl]
        completed = context.machine.run(argv, timeout_s=RESTART_TIMEOUT_S)
        if not completed.ok:
            raise Refused(
                f"cannot restart Docker: {(completed.err or completed.out).strip()}.", fix=f"{port_forwarders.FIX}."
            )
        DockerReady().run(DockerReady.Args(), context)
        port = changes[0].field.removeprefix("port ")
        if remaining := port_forwarders.find_by_port(int(port)):
            raise Failed(f"port {port} is still in use by {remaining}.", fix="Reboot the host.")
        return {"freed": True, "msg": f"port {port} is free: the Docker Engine was restarted"}


def _find_stale_forwarder(port: int, context: Context) -> Forwarder | None:
    """Return the forwarder of a port that no running container has published for FORWARDER_SETTLE_S."""
    deadline_s = time.monotonic() + FORWARDER_SETTLE_S
    while True:
        forwarder = port_forwarders.find_by_port(port)
        if forwarder is None or containers.find_by_port(context.docker(), port) is not None:
            return None
        if time.monotonic() > deadline_s:
            return forwarder
        time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class SystemdUnitState:
    """The state of a systemd unit."""

    file: files.FileState
    #: output of `systemctl show`
    properties: dict[str, str]


class SystemdUnit(StateModule["SystemdUnit.Args", SystemdUnitState]):
    """Manage a systemd unit: the unit file, the running state, and the start at boot.

    systemd is reloaded only if the file changed. Units of the user instance need no root.

    Returns: active_state. Fails if systemd is not available, or if the unit does not start (with its last log lines).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the unit's name, such as ollama.service")
        content: str | None = arg("content of the unit file; null: unchanged", default=None)
        state: Literal["started", "stopped", "restarted", "as it is"] = arg("the desired state", default="as it is")
        enabled: bool | None = arg("start at boot; null: unchanged", default=None)
        scope: Literal["system", "user"] = arg("system or user instance of systemd", default="system")

    def read(self, args: Args, context: Context) -> SystemdUnitState:
        if not UNIT_NAME_PATTERN.fullmatch(args.name):
            raise Refused(f"'{one_line(args.name, max_chars=80)}' is not a unit name.", fix="Example: ollama.service.")
        command = [*_systemctl_command(args), "show", args.name, "--property", ",".join(PROPERTIES)]
        completed = context.machine.run(command)
        if not completed.ok:
            raise Failed(f"systemd did not answer: {(completed.err or completed.out).strip()[-200:]}")
        properties = dict(line.partition("=")[::2] for line in completed.out.splitlines())
        if args.scope == "user":
            path = context.machine.home / ".config/systemd/user" / args.name
        else:
            path = context.machine.path("/etc/systemd/system") / args.name
        return SystemdUnitState(files.FileState.read(path), properties)

    def differences(self, args: Args, observed: SystemdUnitState) -> list[Change]:
        changes = []
        if args.content is not None:
            changes += files.differences(files.IntendedState("file", "0644", content=args.content), observed.file)
        active_state = observed.properties.get("ActiveState", "inactive")
        if args.state == "restarted" or (
            (args.state == "started") != (active_state in STARTED_STATES) and args.state != "as it is"
        ):
            changes.append(Change("state", active_state, args.state))
        is_enabled = observed.properties.get("UnitFileState", "") in ENABLED_STATES
        if args.enabled is not None and args.enabled != is_enabled:
            changes.append(Change("enabled", is_enabled, args.enabled))
        return changes

    def describe(self, args: Args, observed: SystemdUnitState) -> dict[str, Any]:
        return {"active_state": observed.properties.get("ActiveState", "unknown")}

    def act(self, args: Args, observed: SystemdUnitState, changes: list[Change], context: Context) -> dict[str, Any]:
        fields = {change.field for change in changes}
        if args.content is not None and fields & {"content", "state", "mode"}:
            intended = files.IntendedState("file", "0644", content=args.content)
            if files.differences(intended, observed.file):
                files.apply(intended, observed.file)
                self._systemctl(args, context, "daemon-reload")
        if "enabled" in fields:
            self._systemctl(args, context, "enable" if args.enabled else "disable", args.name)
        verbs = {"started": "start", "stopped": "stop", "restarted": "restart"}
        if "state" in fields and args.state in verbs:
            self._systemctl(args, context, verbs[args.state], args.name)
            if args.state != "stopped":
                self._check_stays_up(args, context)
        return {"active_state": self.read(args, context).properties.get("ActiveState", "unknown")}

    def _check_stays_up(self, args: Args, context: Context) -> None:
        deadline_s = time.monotonic() + UNIT_SETTLE_S
        while time.monotonic() < deadline_s:
            properties = self.read(args, context).properties
            if properties.get("ActiveState") == "failed" or properties.get("Result", "success") != "success":
                log = read_last_log_lines(context, args.name, args.scope)
                raise Failed(f"{args.name} exited after its start: {log}", fix=journal_command(args.name, args.scope))
            time.sleep(0.1)

    @staticmethod
    def _systemctl(args: Args, context: Context, *words: str) -> None:
        completed = context.machine.run([*_systemctl_command(args), *words], timeout_s=120)
        if not completed.ok:
            is_denied = "authentication required" in completed.err.lower() or "access denied" in completed.err.lower()
            fix = "Add `become: true` to the task." if is_denied else journal_command(args.name, args.scope)
            raise Failed(f"systemctl {' '.join(words)}: {completed.err.strip()[-300:]}", fix=fix)


def _systemctl_command(args: SystemdUnit.Args) -> list[str]:
    return ["systemctl", *(["--user"] if args.scope == "user" else [])]


def journal_command(unit: str, scope: str) -> str:
    """Return the fix text with the command that shows a unit's log.

    Args:
        scope: user or system.
    """
    return f"On the host: `journalctl {'--user ' if scope == 'user' else ''}-u {unit} -n 20`."


def read_last_log_lines(context: Context, unit: str, scope: str) -> str:
    """Return the last three lines of a unit's journal as one line."""
    scope_options = ["--user"] if scope == "user" else []
    completed = context.machine.run(["journalctl", *scope_options, "-u", unit, "-n", "3", "-o", "cat", "--no-pager"])
    return " ".join(completed.out.split())[-300:] or "no output"
