"""Modules about an interim server, which takes a server's requests while that one is replaced."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparkwright import defaults
from sparkwright.errors import Exit, Failed
from sparkwright.host.containers import compile_caches, containers, ownership
from sparkwright.host.gateway import interim
from sparkwright.host.gateway.server_operations import Gateway
from sparkwright.host.memory import held, memory_fit
from sparkwright.host.memory.memory_fit import Server
from sparkwright.host.module import Context, Module, StateModule
from sparkwright.protocol.container import ContainerSpec
from sparkwright.protocol.result import Change, Result, arg
from sparkwright.units import gib


class InterimFits(Module["InterimFits.Args"]):
    """Check that a second server fits beside the running one, to take its requests at the gateways while that is replaced.

    It fits when the host has the memory for it now, and for it and the new server once the running one is gone; when its port is
    free; and when every gateway in front of the host has a place for it and sends requests to the running server now. With `swap:
    auto` it is left out, too, where other hosts serve the model meanwhile. What is unknown is no fit. That there will be one is
    written down here, before anything is started.

    Returns: fits, name (of its container), spec, base_url. Fails with `swap: beside` when it does not fit, with the reason.
    """

    @dataclass(frozen=True)
    class Args:
        swap: Literal["auto", "in_place", "beside"] = arg("the host's variable: beside fails where it does not fit")
        spec: dict[str, Any] = arg("the server that is to run, as `container` in scope holds it")
        port: int = arg("the host's port for the interim server; 0: it has none")
        alone: bool = arg("no other host serves this model at the gateways")
        served_name: str = arg("the model's name in requests")
        gateways: list[dict[str, Any]] = arg("the gateways in front of this host, as `host.gateways` holds them")
        utilization: float = arg("share of MemTotal that the engine takes, 0 to 1; without engine_memory", default=0.0)
        needs_bytes: int = arg("what an engine without such a share takes, bytes", default=0)
        engine_memory: dict[str, Any] = arg("what it takes, as `engine_memory` in scope has it", default_factory=dict)
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
    return f"container {ownership.holder(context, held)}" if held else ""


def _memory(args: InterimFits.Args, context: Context) -> str:
    server = Server.of(str(args.spec["name"]), args.engine_memory, args.utilization, args.needs_bytes)
    found = memory_fit.of(context, server, args.reserve_gib)
    if not found.of("server"):
        return memory_fit.UNKNOWN
    need = found.need_bytes
    available = context.machine.meminfo()["MemAvailable"]
    if available < need:
        return f"{gib(available)} GiB available beside it, {gib(need)} GiB needed"
    later = available + (held.of_server(str(args.spec["name"]), context) or 0)
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
    """The gateways send requests to the interim server, which was checked before. See `interim_fits`.

    A gateway that does not find it up within 30 s, for a firewall say, makes it useless: with `swap: auto` that is said, and the
    server is replaced in place.

    Returns: serving. Fails with `swap: beside` when a gateway does not find it up.
    """

    safe_in_check = False

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the interim server's container")
        swap: Literal["auto", "in_place", "beside"] = arg("the host's variable")
        gateways: list[dict[str, Any]] = arg("the gateways in front of this host, as `host.gateways` holds them")

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
    """No interim server is left: it is drained at the gateways, stopped and removed. See `interim_fits`.

    It stays while it alone serves: where the server that it stood in for is not up at a gateway. The next run removes it then, or
    a health check that finds the verified server well.

    Returns: gone.
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the container that it stood in for")
        drain_s: float = arg("how long its requests may take to end, seconds", default=defaults.DRAIN_S)

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
