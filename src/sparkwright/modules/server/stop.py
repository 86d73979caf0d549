"""Modules that end a server: drain it, stop it, keep it, and wait for its exit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkwright import defaults, units
from sparkwright.engines.engine import Engine
from sparkwright.errors import Failed
from sparkwright.host import gpu_processes
from sparkwright.host.containers import container_labels, containers, lifecycle, ownership, replacement, server_key
from sparkwright.host.memory import holders
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import history, verified_states
from sparkwright.measure import server_counters
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.visible import format_count

if TYPE_CHECKING:
    from sparkwright.host.gateway.server_operations import Gateway


@dataclass(frozen=True, slots=True)
class StopAndKeepState:
    """The server's container, and the one that was stopped and kept earlier."""

    #: its inspect; empty when there is none
    current: dict[str, Any]
    #: its inspect; empty when there is none
    previous: dict[str, Any]


class StopAndKeep(StateModule["StopAndKeep.Args", StopAndKeepState]):
    """Stop the server, and keep it as NAME-previous without a restart policy.

    The server is the container NAME; if there is none, the last verified server of the host, under another recipe's
    container name.

    Its policy is set to `no` before it stops, so that a reboot can never start two servers. Its state is recorded before the
    first step, for `restore_previous`, so that a run interrupted at any point can be undone. Without a server there is
    nothing to do. An older NAME-previous left by an unfinished run is kept if the current server was never verified (then
    the current one is the failed attempt, and is removed); otherwise it is removed.

    Returns: previous (its name, or empty).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        stop_timeout_s: int = arg("seconds to stop before it is killed", default=defaults.STOP_TIMEOUT_S)

    def read(self, args: Args, context: Context) -> StopAndKeepState:
        return StopAndKeepState(replacement.find_current(context, args.name), replacement.find_kept(context, args.name))

    def differences(self, args: Args, observed: StopAndKeepState) -> list[Change]:
        if not observed.current:
            return []
        name, kept_name = replacement.name_of(observed.current), args.name + containers.PREVIOUS_SUFFIX
        return [Change("container", f"{name} ({observed.current['State']['Status']})", f"{kept_name} (stopped)")]

    def describe(self, args: Args, observed: StopAndKeepState) -> dict[str, Any]:
        return {"previous": args.name + containers.PREVIOUS_SUFFIX if observed.current or observed.previous else ""}

    def act(self, args: Args, observed: StopAndKeepState, changes: list[Change], context: Context) -> dict[str, Any]:
        name, kept_name = replacement.name_of(observed.current), args.name + containers.PREVIOUS_SUFFIX
        ownership.require_ours(context, observed.current)
        good = verified_states.load_last(context.state)
        holders.record_stop(context, observed.current)
        if observed.previous and observed.current["Id"] != good.get("container_id"):
            lifecycle.remove(context, observed.current, args.stop_timeout_s)
            return {"msg": f"removed an unfinished {name}; {replacement.name_of(observed.previous)} is still kept"}
        if observed.previous:
            lifecycle.force_remove(context, observed.previous["Id"])
        _record_stopped(context, observed.current, args.name)
        lifecycle.set_policy(context, observed.current, "no")
        lifecycle.stop(context, observed.current, args.stop_timeout_s)
        lifecycle.rename(context, observed.current, kept_name)
        return {"msg": f"stopped, kept as {kept_name}"}


class Stopped(StateModule["Stopped.Args", dict[str, Any]]):
    """Stop the server, without a restart policy, until it is started and verified again.

    A server that Docker keeps restarting is stopped too. Its state (policy, running, memory use) is recorded before the
    first step.

    Returns: was_running. Fails if it does not stop; refused for a container that sparkwright did not create.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        stop_timeout_s: int = arg("seconds to stop before it is killed", default=defaults.STOP_TIMEOUT_S)

    def read(self, args: Args, context: Context) -> dict[str, Any]:
        return containers.inspect(context.docker(), args.name) or {}

    def differences(self, args: Args, observed: dict[str, Any]) -> list[Change]:
        if not observed:
            return []
        state, policy = observed["State"], observed["HostConfig"]["RestartPolicy"]["Name"] or "no"
        changes = [Change("state", state["Status"], "stopped")] if state["Running"] else []
        return [*changes, Change("restart", policy, "no")] if policy != "no" else changes

    def describe(self, args: Args, observed: dict[str, Any]) -> dict[str, Any]:
        return {"was_running": bool(observed) and observed["State"]["Running"]}

    def run(self, args: Args, context: Context) -> Result:
        observed = self.read(args, context)
        if observed and not context.check:
            ownership.require_ours(context, observed)
            holders.record_stop(context, observed)
            _record_restarted(context, observed)
        return super().run(args, context)

    def act(self, args: Args, observed: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        lifecycle.set_policy(context, observed, "no")
        lifecycle.stop(context, observed, args.stop_timeout_s)
        return {}


POLL_S = 0.1


class WaitExited(Module["WaitExited.Args"]):
    """Wait until the stopped server has exited: not running according to the engine, and no process in its cgroup.

    An engine can report a container as stopped while one of its processes hangs in the driver; that process still holds its
    memory.

    Returns: waited_s. Fails after timeout_s with the remaining processes.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name before it was renamed")
        timeout_s: float = arg("how long its processes may take to exit, seconds", default=30.0)

    def run(self, args: Args, context: Context) -> Result:
        stopped = holders.read_own_stop(context)
        if context.check or not stopped.get("id"):
            return Result(msg="nothing was stopped", data={"waited_s": 0.0})
        started_s = time.monotonic()
        while True:
            remaining = _describe_remaining(stopped["id"], context)
            waited_s = time.monotonic() - started_s
            if not remaining:
                return Result(msg="", data={"waited_s": round(waited_s, 2)})
            if waited_s > args.timeout_s:
                fix = "Only a reboot ends a process stuck in the driver; see `dmesg | tail` on the host."
                problem = f"after {waited_s:.0f} s there is still {', '.join(remaining)}"
                raise Failed(f"{args.name} is stopped, but {problem}.", fix=fix)
            context.progress(0, len(remaining), text=f"waiting for {remaining[0]} to exit")
            time.sleep(POLL_S)


def _describe_remaining(container_id: str, context: Context) -> list[str]:
    """Return descriptions of what is left of a container: the container itself, and its processes."""
    container: dict[str, Any] | None = containers.inspect(context.docker(), container_id)
    running = ["the container, running"] if container is not None and container["State"]["Running"] else []
    return running + [
        f"process {pid}" for pid in ([] if context.machine.root else gpu_processes.list_container_pids(container_id))
    ]


DRAIN_POLL_S = 0.2


class Drain(Module["Drain.Args"]):
    """Let the requests that the server is answering finish before it is stopped, for at most drain_s.

    No engine can refuse new requests, but gateways can: each gateway in front of the server sends it no more, until
    `gateway_return`. A gateway that does not answer is reported, and the run continues. Without a gateway, a busy server may
    never become idle. After drain_s the run continues and reports how many requests are cut off; behind a gateway the
    history has that too. A server that does not report its requests is not waited for, and the message says so.

    In check mode it reports the cost of a restart: the requests running now and the duration of the last start.

    Returns: running (requests, running and waiting, at the end; null if unknown), waited_s.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        drain_s: float = arg(
            "how long to wait for requests to finish, seconds; 0: do not wait", default=defaults.DRAIN_TIMEOUT_S
        )
        gateways: list[dict[str, Any]] = arg(
            "the gateways in front of this host: name, address, port, tls, and server (its name there)",
            default_factory=list,
        )
        interim: str = arg("the interim server that answers during the replacement; empty: none", default="")

    def run(self, args: Args, context: Context) -> Result:
        container = replacement.find_current(context, args.name)
        is_running = bool(container) and bool(container["State"]["Running"])
        if context.check and is_running:
            running = _request_counter(container, context)()
            return Result(
                msg=_describe_cost(running, context, args.interim), data={"running": running, "waited_s": 0.0}
            )
        gateways = _drain_gateways(args.gateways, context) if args.gateways and not context.check else []
        if not is_running:
            _pause_checks(gateways, context)
            return Result(msg="no server is running", data={"running": 0, "waited_s": 0.0})
        started_s, running_requests = time.monotonic(), _request_counter(container, context)
        while True:
            running = _max_requests(running_requests(), gateways, context)
            waited_s = time.monotonic() - started_s
            if not running or waited_s >= args.drain_s:
                break
            context.progress(0, running, text=f"draining, {waited_s:.0f} of {args.drain_s:g} s")
            time.sleep(min(DRAIN_POLL_S, max(0.0, args.drain_s - waited_s)))
        _pause_checks(gateways, context)
        if running and gateways:
            history.append(context, "requests cut", why=_describe_drain(running, waited_s))
        return Result(msg=_describe_drain(running, waited_s), data={"running": running, "waited_s": round(waited_s, 1)})


def _drain_gateways(rows: Sequence[dict[str, Any]], context: Context) -> list[Gateway]:
    """Drain this host at its gateways and return them; whatever a gateway did not do is noted."""
    from sparkwright.host.gateway import drain_record
    from sparkwright.host.gateway.server_operations import Gateway

    gateways = [Gateway.from_json(row) for row in rows]
    for problem in drain_record.drain(context.state, gateways, context.run_id):
        context.note(f"{problem}.")
    return gateways


def _pause_checks(gateways: Sequence[Gateway], context: Context) -> None:
    """Make the gateways stop checking the server."""
    if gateways:
        from sparkwright.host.gateway import drain_record

        drain_record.pause_checks(context.state, gateways)


def _max_requests(running: int | None, gateways: Sequence[Gateway], context: Context) -> int | None:
    """Return the requests by the server's own count, or by its gateways' if that is larger: one may queue before the server."""
    if not gateways:
        return running
    from sparkwright.host.gateway import drain_record

    at_gateways = drain_record.count_running_requests(context.state, gateways)
    return at_gateways or running if running is None else max(running, at_gateways)


def _request_counter(container: dict[str, Any], context: Context) -> Callable[[], int | None]:
    """Return a function that returns the number of requests this server is processing; None if unknown."""
    url = containers.url_of(container)
    engine, key = (
        container_labels.engine_of_container(container),
        server_key.read_container_key(context.state, container),
    )
    return lambda: count_requests(engine, url, key)


def count_requests(engine: Engine, url: str, key: str) -> int | None:
    """Return the number of requests that a server runs or queues; None if its metrics do not report it."""
    busy = (
        server_counters.count_active_requests(server_counters.read_counters(engine.http, url, key)[0]) if url else None
    )
    return None if busy is None else int(busy)


def _describe_drain(running: int | None, waited_s: float) -> str:
    if running is None:
        return "number of running requests unknown; they are aborted"
    if running == 0:
        return "no requests running" + (f", after {waited_s:.1f} s" if waited_s >= 0.5 else "")
    return f"{format_count(running, 'request')} aborted after {waited_s:.0f} s"


def _describe_cost(running: int | None, context: Context, interim: str = "") -> str:
    current = (
        f"{format_count(running, 'request')} running now"
        if running is not None
        else "number of running requests unknown"
    )
    if interim:
        return f"{interim} answers meanwhile; {current}"
    ready_s = (verified_states.load_last(context.state).get("measured") or {}).get("ready_s")
    unknown = "for an unknown time (no start measured yet)"
    duration = unknown if ready_s is None else f"for about {units.format_rough_duration(ready_s)} (last start)"
    return f"server down {duration}; {current}"


def _record_stopped(context: Context, container: dict[str, Any], attempt: str) -> None:
    """Record a server as it is, so that it can be restored, before it is stopped for its replacement.

    Args:
        attempt: the name of the new container.
    """
    _write_previous(context, container, {"attempt": attempt})


def _record_restarted(context: Context, container: dict[str, Any]) -> None:
    """Record a server that is about to be restarted. A verified one is recorded as running, even if it is stopped."""
    verified = container["Id"] == verified_states.load_last(context.state).get("container_id")
    _write_previous(context, container, {"running": True} if verified else {})


def _write_previous(context: Context, container: dict[str, Any], extra: dict[str, Any]) -> None:
    recorded, good = context.state.read("previous") or {}, verified_states.load_last(context.state)
    identity = containers.identity(container)
    if identity["policy"] == "no" and identity["id"] == good.get(
        "container_id"
    ):  # the policy was removed since it was verified
        identity["policy"] = good["spec"]["restart"]
    if recorded.get("id") == container["Id"]:  # a run that was cut off had begun to change these: its record is right
        identity = {key: recorded.get(key, value) for key, value in identity.items()}
    context.state.write("previous", {**identity, **extra, "run": context.run_id})
