from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sparkwright import defaults
from sparkwright.host.gateway import interim
from sparkwright.host.gateway.server_operations import Gateway
from sparkwright.host.module import Context, StateModule
from sparkwright.protocol.result import Change, arg


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
