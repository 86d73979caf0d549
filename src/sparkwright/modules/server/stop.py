"""Modules that drain and stop a server, and wait for its processes to exit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkwright import defaults, units
from sparkwright.errors import Failed
from sparkwright.host import gpu_processes
from sparkwright.host.containers import container_labels, containers, lifecycle, ownership, replacement, server_key
from sparkwright.host.memory import holders
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import history, stopped_server, verified_states
from sparkwright.host.records.stopped_server import StoppedServer
from sparkwright.measure import server_counters
from sparkwright.measure.http_probe import Target
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.visible import format_count

if TYPE_CHECKING:
    from sparkwright.host.gateway.server_operations import Gateway

POLL_S = 0.1

DRAIN_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class StopAndKeepState:
    """The server's container, and the container that was stopped and kept earlier."""

    #: Docker's inspection of the server's container; empty if there is none
    current: dict[str, Any]
    #: Docker's inspection of the container that was kept earlier; empty if there is none
    previous: dict[str, Any]


class StopAndKeep(StateModule["StopAndKeep.Args", StopAndKeepState]):
    """Stop the server, and keep it as NAME-previous without a restart policy.

    The server is the container NAME; if there is none, it is the host's last verified server, under another recipe's
    container name.

    Its policy is set to `no` before it stops, so that a reboot can never start two servers. Its state is recorded before the
    first step, so that `restore_previous` can undo a run interrupted at any point. If an unfinished run left an older
    NAME-previous, the last verified container is kept: if the current server was never verified, it is a failed attempt and
    is removed; otherwise the older NAME-previous is removed.

    Returns: previous (name of the kept container; empty if there is none).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        stop_timeout_s: int = arg(
            "how long it may take to stop before it is killed, seconds", default=defaults.STOP_TIMEOUT_S
        )

    def read(self, args: Args, context: Context) -> StopAndKeepState:
        return StopAndKeepState(replacement.find_current(context, args.name), replacement.find_kept(context, args.name))

    def differences(self, args: Args, observed: StopAndKeepState) -> list[Change]:
        if not observed.current:
            return []
        name, kept_name = containers.name_of(observed.current), args.name + containers.PREVIOUS_SUFFIX
        return [Change("container", f"{name} ({observed.current['State']['Status']})", f"{kept_name} (stopped)")]

    def describe(self, args: Args, observed: StopAndKeepState) -> dict[str, Any]:
        return {"previous": args.name + containers.PREVIOUS_SUFFIX if observed.current or observed.previous else ""}

    def act(self, args: Args, observed: StopAndKeepState, changes: list[Change], context: Context) -> dict[str, Any]:
        name, kept_name = containers.name_of(observed.current), args.name + containers.PREVIOUS_SUFFIX
        ownership.require_ours(context, observed.current)
        verified_state = verified_states.load_last(context.state)
        holders.record_stop(context, observed.current)
        if observed.previous and observed.current["Id"] != verified_state.container_id:
            lifecycle.remove(context, observed.current, args.stop_timeout_s)
            return {"msg": f"removed the unverified {name}; {containers.name_of(observed.previous)} is still kept"}
        if observed.previous:
            lifecycle.force_remove(context, observed.previous["Id"])
        _record_previous(context, observed.current, {"attempt": args.name})
        lifecycle.set_policy(context, observed.current, "no")
        lifecycle.stop(context, observed.current, args.stop_timeout_s)
        lifecycle.rename(context, observed.current, kept_name)
        return {"msg": f"stopped, kept as {kept_name}"}


class Stopped(StateModule["Stopped.Args", dict[str, Any]]):
    """Stop the server and set its restart policy to `no`, even if Docker keeps restarting it.

    Its state (policy, running, memory use) is recorded first, so that it can be started and verified again.

    Returns: was_running. Fails if it does not stop; refused for a container that sparkwright did not create.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        stop_timeout_s: int = arg(
            "how long it may take to stop before it is killed, seconds", default=defaults.STOP_TIMEOUT_S
        )

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
            # a verified server is started again, even if it was already stopped
            is_verified = observed["Id"] == verified_states.load_last(context.state).container_id
            _record_previous(context, observed, {"running": True} if is_verified else {})
        return super().run(args, context)

    def act(self, args: Args, observed: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        lifecycle.set_policy(context, observed, "no")
        lifecycle.stop(context, observed, args.stop_timeout_s)
        return {}


class WaitExited(Module["WaitExited.Args"]):
    """Wait until the stopped server has exited: its container is not running, and its cgroup is empty.

    The Docker Engine can report a container as stopped while one of its processes hangs in the driver and still holds memory.

    Returns: waited_s. Fails after timeout_s; the message lists the remaining processes.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name before it was renamed, for messages")
        timeout_s: float = arg("time limit for its processes to exit, seconds", default=30.0)

    def run(self, args: Args, context: Context) -> Result:
        stop_record = holders.read_own_stop(context)
        if context.check or not stop_record.get("id"):
            return Result(msg="nothing was stopped", data={"waited_s": 0.0})
        started_s = time.monotonic()
        while True:
            remaining = _describe_remaining(stop_record["id"], context)
            waited_s = time.monotonic() - started_s
            if not remaining:
                return Result(msg="", data={"waited_s": round(waited_s, 2)})
            if waited_s > args.timeout_s:
                fix = "Only a reboot ends a process stuck in the driver; see `dmesg | tail` on the host."
                raise Failed(f"{args.name} did not exit within {waited_s:.0f} s: {', '.join(remaining)}.", fix=fix)
            context.progress(0, len(remaining), text=f"waiting for {remaining[0]} to exit")
            time.sleep(POLL_S)


def _describe_remaining(container_id: str, context: Context) -> list[str]:
    """Name what is left of a stopped server: its container if it is still running, and each process."""
    container = containers.inspect(context.docker(), container_id)
    remaining_containers = ["the running container"] if container and container["State"]["Running"] else []
    pids = [] if context.machine.root else gpu_processes.list_container_pids(container_id)
    return remaining_containers + [f"process {pid}" for pid in pids]


class Drain(Module["Drain.Args"]):
    """Wait for running requests to finish before the server is stopped, for at most drain_s.

    Each gateway in front of the server sends it no new requests until `gateway_return`; a gateway that does not answer is
    reported, and the run continues. Engines cannot refuse requests, so without a gateway a busy server may never become
    idle. After drain_s the run continues and reports the number of aborted requests; behind a gateway the history records it
    too. If the server's metrics do not report its requests, the module waits only for those that the gateways count; the
    message then says "at least", or that the number is unknown.

    In check mode it reports the cost of a restart: the requests running now and the duration of the last start.

    Returns: running (requests still running or queued at the end; null if unknown), waited_s.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        drain_s: float = arg(
            "time limit for requests to finish, seconds; 0: do not wait", default=defaults.DRAIN_TIMEOUT_S
        )
        gateways: list[dict[str, Any]] = arg(
            "the gateways in front of this host: name, address, port, tls, and server (its name there)",
            default_factory=list,
        )
        interim: str = arg("name of the interim server that answers during the replacement; empty: none", default="")

    def run(self, args: Args, context: Context) -> Result:
        container = replacement.find_current(context, args.name)
        is_running = bool(container) and bool(container["State"]["Running"])
        if context.check and is_running:
            request_count = _request_counter(container, context)()
            return Result(
                msg=_describe_cost(request_count, context, args.interim),
                data={"running": request_count, "waited_s": 0.0},
            )
        gateways = _drain_gateways(args.gateways, context) if args.gateways and not context.check else []
        if not is_running:
            _pause_checks(gateways, context)
            return Result(msg="no server is running", data={"running": 0, "waited_s": 0.0})
        started_s, count_requests = time.monotonic(), _request_counter(container, context)
        while True:
            count_at_server = count_requests()
            request_count = _max_requests(count_at_server, gateways, context)
            waited_s = time.monotonic() - started_s
            if not request_count or waited_s >= args.drain_s:
                break
            context.progress(0, request_count, text=f"draining, {waited_s:.0f} of {args.drain_s:g} s")
            time.sleep(min(DRAIN_POLL_S, max(0.0, args.drain_s - waited_s)))
        _pause_checks(gateways, context)
        message = _describe_drain(request_count, waited_s, is_minimum=count_at_server is None)
        if request_count and gateways:
            history.append(context, "requests cut", why=message)
        return Result(msg=message, data={"running": request_count, "waited_s": round(waited_s, 1)})


def _drain_gateways(rows: Sequence[dict[str, Any]], context: Context) -> list[Gateway]:
    """Drain this host at its gateways, and return the gateways. Problems are reported in notes."""
    from sparkwright.host.gateway import drain_record
    from sparkwright.host.gateway.server_operations import Gateway

    gateways = [Gateway.from_json(row) for row in rows]
    for problem in drain_record.drain(context.state, gateways, context.run_id):
        context.note(f"{problem}.")
    return gateways


def _pause_checks(gateways: Sequence[Gateway], context: Context) -> None:
    if gateways:
        from sparkwright.host.gateway import drain_record

        drain_record.pause_checks(context.state, gateways)


def _max_requests(count_at_server: int | None, gateways: Sequence[Gateway], context: Context) -> int | None:
    """Return the larger of the server's count and the gateways' count, because requests may queue at a gateway."""
    if not gateways:
        return count_at_server
    from sparkwright.host.gateway import drain_record

    count_at_gateways = drain_record.count_running_requests(context.state, gateways)
    return count_at_gateways or None if count_at_server is None else max(count_at_server, count_at_gateways)


def _request_counter(container: dict[str, Any], context: Context) -> Callable[[], int | None]:
    """Return a function that counts the server's running and queued requests; None if its metrics do not report them."""
    url, engine = containers.url_of(container), container_labels.engine_of_container(container)
    key = server_key.read_container_key(context.state, container)

    def count_requests() -> int | None:
        counters = server_counters.read_counters(Target(engine.http, url, api_key=key))[0] if url else {}
        count = server_counters.count_active_requests(counters)
        return None if count is None else int(count)

    return count_requests


def _describe_drain(request_count: int | None, waited_s: float, *, is_minimum: bool) -> str:
    """Describe the end of a drain. is_minimum: only the gateways counted requests, so there may be more."""
    if request_count is None:
        return "number of running requests unknown; they are aborted"
    if request_count == 0:
        return "no requests running" + (f", after {waited_s:.1f} s" if waited_s >= 0.5 else "")
    return f"{'at least ' if is_minimum else ''}{format_count(request_count, 'request')} aborted after {waited_s:.0f} s"


def _describe_cost(request_count: int | None, context: Context, interim: str) -> str:
    request_note = "number of running requests unknown"
    if request_count is not None:
        request_note = f"{format_count(request_count, 'request')} running now"
    if interim:
        return f"{interim} answers in the meantime; {request_note}"
    ready_s = verified_states.load_last(context.state).measured.get("ready_s")
    unknown_duration = "for an unknown time (no start measured yet)"
    duration = unknown_duration if ready_s is None else f"for about {units.format_rough_duration(ready_s)} (last start)"
    return f"server down {duration}; {request_note}"


def _record_previous(context: Context, container: dict[str, Any], extra_fields: StoppedServer) -> None:
    """Record a server before it is stopped, so that it can be restored.

    Args:
        extra_fields: more fields of the record: "attempt", the new container's name; "running", if it differs from the state.
    """
    earlier_record, verified_state = stopped_server.load(context.state), verified_states.load_last(context.state)
    policy = container["HostConfig"]["RestartPolicy"]["Name"] or "no"
    if policy == "no" and container["Id"] == verified_state.container_id:
        policy = verified_state.spec.get("restart", "no")  # the policy was removed after the verification
    name, running = containers.name_of(container), container["State"]["Running"]
    if (
        earlier_record.get("id") == container["Id"]
    ):  # an interrupted run has changed the container since it was recorded
        name, policy = earlier_record.get("name", name), earlier_record.get("policy", policy)
        running = earlier_record.get("running", running)
    record: StoppedServer = {"id": container["Id"], "name": name, "policy": policy, "running": running}
    stopped_server.save(context.state, {**record, **extra_fields, "run": context.run_id})
