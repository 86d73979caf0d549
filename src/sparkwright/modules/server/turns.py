"""Modules for servers that stand in for each other: by taking turns in the same memory, or as an interim server."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import defaults, units
from sparkwright.errors import Exit, Failed
from sparkwright.host.containers import compile_caches, containers, ownership
from sparkwright.host.gateway import interim
from sparkwright.host.gateway.server_operations import Gateway
from sparkwright.host.memory import holders, memory_fit
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import turns, verified_states
from sparkwright.modules.memory import MemoryArgs
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.units import format_gib


class Turn(Module["Turn.Args"]):
    """Find which of the servers that take turns in memory should be awake. Changes nothing.

    It is the server that `take_turn` recorded last; without a record, the running server; otherwise the first in the list.

    Returns: asleep (another server should be awake), running, proved (its container is the last verified one), awake (name of
    the container that should be awake), interrupted (a server that should be asleep is running), other (the server to stop before
    this one starts: name, host, gateways, running, proved, base_url, and spec, model and serve of its last verified state;
    its name is empty if there is none).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        servers: list[dict[str, Any]] = arg("all servers that take turns, as in `host.turns`")

    def run(self, args: Args, context: Context) -> Result:
        containers_by_name = {
            server["name"]: containers.inspect(context.docker(), server["name"]) or {} for server in args.servers
        }
        running_names = [
            name for name, container in containers_by_name.items() if container and container["State"]["Running"]
        ]
        awake_name = turns.awake_server(context.state)
        if awake_name not in containers_by_name:
            awake_name = next(iter(running_names), next(iter(containers_by_name)))
        other_servers = [
            server for server in args.servers if server["name"] in running_names and server["name"] != args.name
        ]
        if len(other_servers) > 1:
            names = " and ".join(server["name"] for server in other_servers)
            raise Failed(f"{names} are running, but should take turns.", fix="Stop one with `docker stop`.")
        other_servers = other_servers or [
            server for server in args.servers if server["name"] == awake_name != args.name
        ]
        container, verified_state = containers_by_name[args.name], verified_states.load_last(context.state)
        data = {
            "asleep": awake_name != args.name,
            "running": args.name in running_names,
            "proved": bool(container) and container["Id"] == verified_state.container_id,
            "awake": awake_name,
            "interrupted": any(name != awake_name for name in running_names),
            "other": _other_server(other_servers[0], containers_by_name, context)
            if other_servers
            else {"name": "", "running": False},
        }
        return Result(msg=_describe_turn(args.name, data, container), data=data)


def _other_server(server: Mapping[str, Any], containers_by_name: Mapping[str, Any], context: Context) -> dict[str, Any]:
    container = containers_by_name[server["name"]]
    verified_state = verified_states.load_last(context.state.for_server(server["name"]))
    recorded_fields = {"spec": verified_state.spec, "model": verified_state.model, "serve": verified_state.serve}
    url = containers.url_of(container) if container else ""
    running = bool(container) and bool(container["State"]["Running"])
    is_last_verified = bool(container) and container["Id"] == verified_state.container_id
    return {**recorded_fields, **server, "running": running, "proved": is_last_verified, "base_url": url}


def _describe_turn(name: str, data: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    if not data["asleep"]:
        return f"it is the turn of {name}" + (
            f", but {data['other']['name']} is running" if data["interrupted"] else ""
        )
    if data["running"]:
        return f"{name} is running, but it is the turn of {data['awake']}"
    if not data["proved"]:
        return f"{name} is asleep and was never verified: it is the turn of {data['awake']}"
    ended_s = containers.parse_time(str((container.get("State") or {}).get("FinishedAt") or ""))
    since = f" (since {units.format_time(ended_s, units.MINUTE_FORMAT)})" if ended_s else ""
    return f"{name} is asleep{since}: it is the turn of {data['awake']}"


@dataclass(frozen=True, slots=True)
class TakeTurnState:
    """The recorded turn."""

    #: name of the container that should be awake; empty if none is recorded
    awake: str
    #: all containers that take turns
    servers: tuple[str, ...]


class TakeTurn(StateModule["TakeTurn.Args", TakeTurnState]):
    """Record which of the servers that take turns in memory should be awake; all others are asleep.

    Record it before any server is stopped: if the run is interrupted, the next command and the health check use the record.

    Returns: awake.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container that will be awake")
        servers: list[dict[str, Any]] = arg("all servers that take turns, as in `host.turns`")

    def read(self, args: Args, context: Context) -> TakeTurnState:
        return TakeTurnState(turns.awake_server(context.state), tuple(turns.list_servers(context.state)))

    def differences(self, args: Args, observed: TakeTurnState) -> list[Change]:
        names = tuple(server["name"] for server in args.servers)
        changes = [Change("awake", observed.awake or None, args.name)] if observed.awake != args.name else []
        if {*observed.servers} != {*names}:
            changes.append(Change("take turns", list(observed.servers) or None, list(names)))
        return changes

    def describe(self, args: Args, observed: TakeTurnState) -> dict[str, Any]:
        return {"awake": args.name}

    def act(self, args: Args, observed: TakeTurnState, changes: list[Change], context: Context) -> dict[str, Any]:
        turns.set_awake(context.state, args.name, [server["name"] for server in args.servers], context.run_id)
        return {}


class InterimFits(Module["InterimFits.Args"]):
    """Check that an interim server, which answers requests during a replacement, fits next to the running server.

    It fits if the host has enough memory for it now, and for both it and the new server once the running one is gone; if its
    port is free; and if every gateway in front of the host has an entry for it and sends requests to the running server.
    With `swap: auto` no interim server is used if other hosts serve the model. If any of this is unknown, it counts as not
    fitting. A positive result is recorded before the interim server starts.

    Returns: fits, name (of its container), spec, base_url. Refused with `swap: beside` if it does not fit, with the reason.
    """

    @dataclass(frozen=True, kw_only=True)
    class Args(MemoryArgs):
        swap: Literal["auto", "in_place", "beside"] = arg(
            "the host's variable; beside: required, auto: only if it fits"
        )
        spec: dict[str, Any] = arg("the new server's container, in the format of the variable `container`")
        port: int = arg("the host's port for the interim server; 0: none")
        alone: bool = arg("whether no other host behind the gateways serves this model")
        served_name: str = arg("the model's name in requests")
        gateways: list[dict[str, Any]] = arg("the gateways in front of this host, as in `host.gateways`")

    def run(self, args: Args, context: Context) -> Result:
        name = str(args.spec["name"])
        data = {
            "fits": False,
            "name": interim.container_name(name),
            "spec": _build_spec(args),
            "base_url": f"http://127.0.0.1:{args.port}",
        }
        gateways = [Gateway.from_json(gateway) for gateway in args.gateways]
        if not containers.is_running(context.docker(), name):
            return Result(msg="not needed: no server is running", data=data)
        if args.swap == "auto" and not args.alone:
            return Result(msg=f"not needed: other hosts serve {args.served_name} in the meantime", data=data)
        if reason := _explain_unfit(args, gateways, context):
            if args.swap != "beside":
                return Result(msg=f"replaced in place: {reason}", data=data)
            fix = "With `swap: auto` under the host's `vars:`, it is replaced in place."
            msg = f"`swap: beside`: no interim server fits beside {name}: {reason}."
            return Result(failed=True, exit=Exit.REFUSED, msg=msg, fix=fix, data=data)
        if not context.check:
            interim.save_record(context, name, gateways)
        msg = f"{data['name']} on port {args.port} answers requests in the meantime"
        return Result(msg=msg, data={**data, "fits": True})


def _explain_unfit(args: InterimFits.Args, gateways: Sequence[Gateway], context: Context) -> str:
    """Return the reason why no interim server can run; empty if it fits."""
    if args.spec.get("network") == "host":
        return "with `network: host` two servers cannot publish different ports"
    existing_container = containers.inspect(context.docker(), interim.container_name(str(args.spec["name"])))
    if existing_container:
        return f"container {ownership.describe_holder(context, existing_container)}"
    return (
        _memory_problem(args, context)
        or _port_problem(args, context)
        or interim.find_routing_problem(context.state, gateways, args.served_name)
    )


def _memory_problem(args: InterimFits.Args, context: Context) -> str:
    server = args.planned_server(str(args.spec["name"]))
    budget = memory_fit.compute_budget(context, server, args.reserve_gib)
    server_bytes, need_bytes = budget.owner_bytes("server"), budget.need_bytes
    if not server_bytes:
        return memory_fit.UNKNOWN_ENGINE_MEMORY
    available_bytes = context.machine.meminfo()["MemAvailable"]
    if available_bytes < need_bytes:
        return f"{format_gib(available_bytes)} GiB available next to it, {format_gib(need_bytes)} GiB needed"
    later_bytes = available_bytes + (holders.server_bytes(str(args.spec["name"]), context) or 0)
    if later_bytes < need_bytes + server_bytes:
        needed_text = f"{format_gib(need_bytes + server_bytes)} GiB needed"
        return f"{format_gib(later_bytes)} GiB available for it and the new server together, {needed_text}"
    return ""


def _port_problem(args: InterimFits.Args, context: Context) -> str:
    if not args.port:
        return "the server publishes no port"
    holder = containers.describe_port_holder(context.docker(), args.port)
    return f"port {args.port} is in use by {holder}" if holder else ""


def _build_spec(args: InterimFits.Args) -> dict[str, Any]:
    """Return the spec of the same server on another port, without automatic restarts."""
    spec = ContainerSpec.from_json(args.spec)
    ports = tuple(_replace_port(port, args.port) for port in spec.ports[:1])
    return dataclasses.replace(spec, name=interim.container_name(spec.name), restart="no", ports=ports).to_json()


def _replace_port(published_port: str, port: int) -> str:
    """Return "ADDRESS:PORT:CONTAINER_PORT" or "PORT:CONTAINER_PORT" with another port of the host."""
    address, container_port = published_port.rsplit(":", 2)[:-2], published_port.rpartition(":")[2]
    return ":".join([*address, str(port), container_port])


class InterimServes(Module["InterimServes.Args"]):
    """Make the gateways send requests to the interim server, which must be ready. See `interim_fits`.

    With `swap: auto`, if a gateway does not report it as up within 30 s, for example because of a firewall, the module
    reports this, and the server is replaced in place.

    Returns: serving. Fails with `swap: beside` if a gateway does not report it as up.
    """

    valid_in_check_mode = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the interim server's container")
        swap: Literal["auto", "in_place", "beside"] = arg("the host's variable")
        gateways: list[dict[str, Any]] = arg("the gateways in front of this host, as in `host.gateways`")

    def run(self, args: Args, context: Context) -> Result:
        gateways = [Gateway.from_json(gateway) for gateway in args.gateways]
        diff = [Change(f"gateway {gateway.name}", "", args.name) for gateway in gateways]
        if context.check:
            return Result(changed=True, diff=diff, data={"serving": False})
        context.guards.end_verified()
        if container := containers.inspect(context.docker(), args.name):
            compile_caches.save_verified(context, container)
        reason = interim.start_serving(context.state, gateways)
        if not reason:
            names = ", ".join(gateway.name for gateway in gateways)
            return Result(changed=True, diff=diff, msg=f"receives requests from {names}", data={"serving": True})
        problem = f"{args.name} receives no requests: {reason}."
        if args.swap == "beside":
            raise Failed(problem, fix="Open its port for the gateway's host.")
        context.note(f"{problem} The server is replaced in place.")
        return Result(msg=f"replaced in place: {reason}", data={"serving": False})


class InterimStopped(StateModule["InterimStopped.Args", dict[str, Any]]):
    """Drain, stop and remove the interim server. See `interim_fits`.

    It is kept while a gateway reports it, but not the server itself, as up. It is then removed by the next run, or by a
    health check that finds the verified server healthy.

    Returns: gone.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("name of the server's container")
        drain_s: float = arg("how long its requests may take to finish, seconds", default=defaults.DRAIN_TIMEOUT_S)

    def read(self, args: Args, context: Context) -> dict[str, Any]:
        return interim.load_record(context.state)

    def differences(self, args: Args, observed: dict[str, Any]) -> list[Change]:
        return [Change("container", interim.container_name(args.name), None)] if observed else []

    def describe(self, args: Args, observed: dict[str, Any]) -> dict[str, Any]:
        return {"gone": not observed}

    def act(self, args: Args, observed: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        gateways = [Gateway.from_json(gateway) for gateway in observed["gateways"]]
        is_removed, message = interim.drain_and_remove(context, args.name, gateways, args.drain_s)
        if not is_removed:
            context.note(f"{message}.")
        return {"gone": is_removed, "msg": message}
