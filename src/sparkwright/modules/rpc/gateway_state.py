from __future__ import annotations

from dataclasses import dataclass

from sparkwright.gateway import statistics
from sparkwright.host.containers import containers
from sparkwright.host.gateway import admin, good, place
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result, arg


class GatewayState(Module["GatewayState.Args"]):
    """What the gateway of this host does now: requests, queue and errors of each model, and the state of each server.

    Returns: running, models (see gateway/statistics.py), verified (whether HAProxy reads the files that were verified last).
    """

    @dataclass(frozen=True)
    class Args:
        name: str = arg("the gateway's container", default="gateway")

    def run(self, args: Args, context: Context) -> Result:
        found = containers.inspect(context.docker(), args.name)
        folder = place.state(context).path / place.CONFIG
        rows = admin.rows(folder) if found is not None and found["State"]["Running"] else []
        verified = bool(rows) and admin.running_digest(folder) == good.last(context).get("digest")
        data = {"running": bool(rows), "verified": verified, "models": statistics.models(rows)}
        return Result(msg="" if rows else "no gateway is running", data=data)
