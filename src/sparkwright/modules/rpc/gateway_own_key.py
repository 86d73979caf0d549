from __future__ import annotations

from dataclasses import dataclass

from sparkwright.host.gateway import own_key
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
