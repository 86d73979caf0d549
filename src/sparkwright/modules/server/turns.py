"""Modules for servers that stand in for each other: taking turns in the same memory, or as an interim server during a swap."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import defaults, units
from sparkwright.errors import Exit, Failed
from sparkwright.host.containers import compile_caches, container_labels, containers
from sparkwright.host.gateway import interim
from sparkwright.host.gateway.server_operations import Gateway
from sparkwright.host.memory import holders, memory_fit
from sparkwright.host.memory.memory_fit import Server
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.host.records import good_states, turns
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.units import gib


class Turn(Module["Turn.Args"]):
    """Find which of the servers that take turns in memory is to be awake. Changes nothing.

    It is the last one recorded by `take_turn`; if there is none, the one that is running, otherwise the first in the list.

    Returns: asleep (another server is to be awake), running, proved (its container was verified, unchanged), awake (a
    container's name), interrupted (a server is running that should be asleep), other: the one to stop before this one
    starts, as last verified: name, host, gateways, running, base_url, spec, model, serve; its name is empty if there is
    none.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container's name")
        servers: list[dict[str, Any]] = arg("all servers that take turns, as in `host.turns`")

    def run(self, args: Args, context: Context) -> Result:
        found = {server["name"]: containers.inspect(context.docker(), server["name"]) or {} for server in args.servers}
        running = [name for name, value in found.items() if value and value["State"]["Running"]]
        awake = turns.awake(context.state)
        if awake not in found:
            awake = next(iter(running), next(iter(found)))
        others = [server for server in args.servers if server["name"] in running and server["name"] != args.name]
        if len(others) > 1:
            names = " and ".join(other["name"] for other in others)
            raise Failed(f"{names} run at the same time, and take turns.", fix="Stop one with `docker stop`.")
        others = others or [server for server in args.servers if server["name"] == awake != args.name]
        own, good = found[args.name], good_states.last(context.state)
        data = {
            "asleep": awake != args.name,
            "running": args.name in running,
            "proved": bool(own) and own["Id"] == good.get("container_id"),
            "awake": awake,
            "interrupted": any(name != awake for name in running),
            "other": _other(others[0], found, context) if others else {"name": "", "running": False},
        }
        return Result(msg=_sentence(args.name, data, own), data=data)


def _other(server: Mapping[str, Any], found: Mapping[str, Any], context: Context) -> dict[str, Any]:
    container = found[server["name"]]
    good = good_states.last(context.state.of_server(server["name"]))
    about = {key: good.get(key) or {} for key in ("spec", "model", "serve")}
    url = containers.url_of(container) if container else ""
    running = bool(container) and bool(container["State"]["Running"])
    kept = bool(container) and container["Id"] == good.get("container_id")
    return {**about, **server, "running": running, "proved": kept, "base_url": url}


def _sentence(name: str, data: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    if not data["asleep"]:
        also = f", and {data['other']['name']} runs: a switch was interrupted" if data["interrupted"] else ""
        return f"it is the turn of {name}{also}"
    if data["running"]:
        return f"{name} runs, and it is the turn of {data['awake']}: a switch was interrupted"
    if not data["proved"]:
        return f"{name} is asleep and was never verified: it is the turn of {data['awake']}"
    ended_s = containers.moment(str((own.get("State") or {}).get("FinishedAt") or ""))
    since = f" (since {units.moment(ended_s, units.MINUTE)})" if ended_s else ""
    return f"{name} is asleep{since}: it is the turn of {data['awake']}"


@dataclass(frozen=True, slots=True)
class TakeTurnFound:
    """The recorded turn."""

    #: name of the container that is to be awake
    awake: str
    #: names of all containers that take turns
    servers: tuple[str, ...]


class TakeTurn(StateModule["TakeTurn.Args", TakeTurnFound]):
    """Record which of the servers that take turns in memory is to be awake; all others are asleep.

    Use it before one is stopped for the other: if the run is interrupted later, the next command and the health check rely
    on it.

    Returns: awake.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container that will be awake")
        servers: list[dict[str, Any]] = arg("all servers that take turns, as in `host.turns`")

    def read(self, args: Args, context: Context) -> TakeTurnFound:
        return TakeTurnFound(turns.awake(context.state), tuple(turns.names(context.state)))

    def differences(self, args: Args, found: TakeTurnFound) -> list[Change]:
        names = tuple(server["name"] for server in args.servers)
        changes = [Change("awake", found.awake or None, args.name)] if found.awake != args.name else []
        if {*found.servers} != {*names}:
            changes.append(Change("take turns", list(found.servers) or None, list(names)))
        return changes

    def describe(self, args: Args, found: TakeTurnFound) -> dict[str, Any]:
        return {"awake": args.name}

    def act(self, args: Args, found: TakeTurnFound, changes: list[Change], context: Context) -> dict[str, Any]:
        turns.give(context.state, args.name, [server["name"] for server in args.servers], context.run_id)
        return {}


class InterimFits(Module["InterimFits.Args"]):
    """Check that an interim server fits next to the running one, to answer requests at the gateways during the replacement.

    It fits if the host has enough memory for it now, and for both it and the new server once the running one is gone; if its
    port is free; and if every gateway in front of the host has an entry for it and sends requests to the running server.
    With `swap: auto` it is also omitted if other hosts serve the model. Anything unknown counts as not fitting. The decision
    is recorded here, before anything is started.

    Returns: fits, name (of its container), spec, base_url. Fails with `swap: beside` if it does not fit, with the reason.
    """

    @dataclass(frozen=True)
    class Args:
        swap: Literal["auto", "in_place", "beside"] = arg("the host's variable; beside fails if it does not fit")
        spec: dict[str, Any] = arg("the new server's container, as `container` in scope")
        port: int = arg("the host's port for the interim server; 0: none")
        alone: bool = arg("whether no other host serves this model at the gateways")
        served_name: str = arg("the model's name in requests")
        gateways: list[dict[str, Any]] = arg("the gateways in front of this host, as in `host.gateways`")
        utilization: float = arg(
            "share of MemTotal that the engine takes, 0 to 1; used without engine_memory", default=0.0
        )
        needs_bytes: int = arg("memory of an engine without such a share, bytes", default=0)
        engine_memory: dict[str, Any] = arg(
            "the engine's memory use, as `engine_memory` in scope", default_factory=dict
        )
        reserve_gib: float = arg("memory that must stay free, GiB", default=defaults.RESERVE_GIB)

    def run(self, args: Args, context: Context) -> Result:
        name = str(args.spec["name"])
        data = {"fits": False, "name": interim.container_of(name), "spec": _spec(args), "base_url": _url(args.port)}
        gateways = [Gateway.of(gateway) for gateway in args.gateways]
        if not containers.running(context.docker(), name):
            return Result(msg="no server is running that it could stand in for", data=data)
        if args.swap == "auto" and not args.alone:
            return Result(msg=f"not needed: other hosts serve {args.served_name} meanwhile", data=data)
        if why := _why_not(args, gateways, context):
            if args.swap != "beside":
                return Result(msg=f"replaced in place: {why}", data=data)
            fix = "With `swap: auto` under `vars:` of the host it is replaced in place."
            msg = f"`swap: beside`: no second server beside {name}: {why}."
            return Result(failed=True, exit=Exit.REFUSED, msg=msg, fix=fix, data=data)
        if not context.check:
            interim.remember(context, name, gateways)
        msg = f"{data['name']} on port {args.port} takes the requests meanwhile"
        return Result(msg=msg, data={**data, "fits": True})


def _why_not(args: InterimFits.Args, gateways: Sequence[Gateway], context: Context) -> str:
    if args.spec.get("network") == "host":
        return "on the host's network (`network: host`) two servers cannot have ports of their own"
    return (
        _name(args, context)
        or _memory(args, context)
        or _port(args, context)
        or interim.why_not(context.state, gateways, args.served_name)
    )


def _name(args: InterimFits.Args, context: Context) -> str:
    held = containers.inspect(context.docker(), interim.container_of(str(args.spec["name"])))
    return f"container {container_labels.holder(context, held)}" if held else ""


def _memory(args: InterimFits.Args, context: Context) -> str:
    server = Server.of(str(args.spec["name"]), args.engine_memory, args.utilization, args.needs_bytes)
    found = memory_fit.of(context, server, args.reserve_gib)
    if not found.of("server"):
        return memory_fit.UNKNOWN
    need = found.need_bytes
    available = context.machine.meminfo()["MemAvailable"]
    if available < need:
        return f"{gib(available)} GiB available beside it, {gib(need)} GiB needed"
    later = available + (holders.of_server(str(args.spec["name"]), context) or 0)
    both = need + found.of("server")
    return "" if later >= both else f"{gib(later)} GiB for it and the new server, {gib(both)} GiB needed"


def _port(args: InterimFits.Args, context: Context) -> str:
    if not args.port:
        return "the server publishes no port"
    holder = containers.who_listens(context.docker(), args.port)
    return f"port {args.port} is in use by {holder}" if holder else ""


def _spec(args: InterimFits.Args) -> dict[str, Any]:
    """Return the spec of the same server on another port, without automatic restarts."""
    spec = ContainerSpec.from_json(args.spec)
    ports = tuple(_moved(port, args.port) for port in spec.ports[:1])
    return dataclasses.replace(spec, name=interim.container_of(spec.name), restart="no", ports=ports).to_json()


def _moved(published: str, port: int) -> str:
    """Return "ADDRESS:PORT:INSIDE" or "PORT:INSIDE" with another port of the host."""
    address, inside = published.rsplit(":", 2)[:-2], published.rpartition(":")[2]
    return ":".join([*address, str(port), inside])


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


class InterimServes(Module["InterimServes.Args"]):
    """Let the gateways send requests to the interim server, which was checked before. See `interim_fits`.

    If a gateway does not report it as up within 30 s, for example because of a firewall, it is useless: with `swap: auto`
    this is reported, and the server is replaced in place.

    Returns: serving. Fails with `swap: beside` if a gateway does not report it as up.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the interim server's container")
        swap: Literal["auto", "in_place", "beside"] = arg("the host's variable")
        gateways: list[dict[str, Any]] = arg("the gateways in front of this host, as in `host.gateways`")

    def run(self, args: Args, context: Context) -> Result:
        gateways = [Gateway.of(gateway) for gateway in args.gateways]
        diff = [Change(f"gateway {gateway.name}", "", args.name) for gateway in gateways]
        if context.check:
            return Result(changed=True, diff=diff, data={"serving": False})
        context.guards.verified()
        if container := containers.inspect(context.docker(), args.name):
            compile_caches.verified(context, container)
        why = interim.serve(context.state, gateways)
        if not why:
            names = ", ".join(gateway.name for gateway in gateways)
            return Result(changed=True, diff=diff, msg=f"gets requests from {names}", data={"serving": True})
        if args.swap == "beside":
            raise Failed(f"{args.name} cannot take the requests: {why}.", fix="Open its port for the gateway's host.")
        context.note(f"{args.name} cannot take the requests: {why}. The server is replaced in place.")
        return Result(msg=f"replaced in place: {why}", data={"serving": False})


class InterimStopped(StateModule["InterimStopped.Args", dict[str, Any]]):
    """Drain, stop and remove the interim server. See `interim_fits`.

    It stays while it alone serves, that is, if the server that it replaced is not up at a gateway. The next run then removes
    it, or a health check that finds the verified server healthy.

    Returns: gone.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container that it replaced")
        drain_s: float = arg("how long its requests may take to finish, seconds", default=defaults.DRAIN_S)

    def read(self, args: Args, context: Context) -> dict[str, Any]:
        return interim.kept(context.state)

    def differences(self, args: Args, found: dict[str, Any]) -> list[Change]:
        return [Change("container", interim.container_of(args.name), None)] if found else []

    def describe(self, args: Args, found: dict[str, Any]) -> dict[str, Any]:
        return {"gone": not found}

    def act(self, args: Args, found: dict[str, Any], changes: list[Change], context: Context) -> dict[str, Any]:
        gateways = [Gateway.of(gateway) for gateway in found["gateways"]]
        gone, message = interim.end(context, args.name, gateways, args.drain_s)
        if not gone:
            context.note(f"{message}.")
        return {"gone": gone, "msg": message}
