"""Requests about a host's gateway."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.host.gateway import now, own_key
from sparkwright.host.module import Context, Module
from sparkwright.protocol.result import Result


class GatewayOwnKey(Module["GatewayOwnKey.Args"]):
    """The SHA-256 of the key with which this host drains its own servers at gateways. The key is made where there is none.

    The key itself never leaves the host but to its gateways; it is random and long enough that its hash tells nothing of it.

    Returns: sha256 (empty in check mode where there is no key yet).
    """

    @dataclass(frozen=True)
    class Args:
        pass

    def run(self, args: Args, context: Context) -> Result:
        key = own_key.kept(context.state) if context.check else own_key.made(context.state)
        return Result(data={"sha256": own_key.hashed(key)})


NONE = {"running": False, "verified": False, "changed": [], "models": [], "clients": []}


class GatewayState(Module["GatewayState.Args"]):
    """Report the current state of this host's gateway: requests, queue and errors of each model, and the state of each server.

    Returns: running, models (see gateway/statistics.py), verified (whether HAProxy reads the files that were verified last),
    changed (files that are not as they were verified), clients (what those with keys of their own used today, see
    gateway/usage.py).
    """

    @dataclass(frozen=True)
    class Args:
        """None."""

    def run(self, args: Args, context: Context) -> Result:
        found = now.inspect(context.state) or NONE
        return Result(msg="" if found["running"] else "no gateway is running", data=found)
