from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sparkwright.errors import Failed
from sparkwright.host.containers import compile_caches, containers
from sparkwright.host.gateway import interim
from sparkwright.host.gateway.server_operations import Gateway
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Change, Result, arg


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
