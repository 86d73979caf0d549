"""The interim server, which may take a server's requests while that one is replaced; judged by the user's files alone."""

from __future__ import annotations

from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.errors import Refused
from sparkwright.project.gateway import interim, routes
from sparkwright.project.gateway.server import load
from sparkwright.project.inventory.host import Host

BESIDE = "beside"


def of(selection: Selection, host: Host) -> dict[str, Any]:
    """Return `port` and `alone` of the interim server.

    `port` is 0 if there can be no interim server. `alone` is True if no other host behind a gateway serves the model.

    Raises Refused, with the line, for `swap: beside` if no gateway would send requests to it.
    """
    root, inventory = selection.project.root, selection.inventory
    gateways = [gateway for gateway in inventory.gateways.values() if host.machine in gateway.members]
    if host.vars.get("swap") == BESIDE and (host.cluster is not None or not gateways):
        why = f"{host.name} is a member of a cluster, which is replaced in place" if host.cluster else _NOBODY
        raise Refused(f"`swap: beside`: {why}.", where=host.set_at.get("vars.swap", host.where), fix=_FIX)
    if not gateways or not host.recipe or host.cluster is not None:
        return {"port": 0, "alone": False}
    wanted = load(root, host)
    others = (server for gateway in gateways for server in routes.readable(root, inventory, gateway))
    same = {other.host.name for other in others if other.recipe.served_name == wanted.recipe.served_name}
    return {"port": interim.port(root, inventory, wanted), "alone": same <= {host.name}}


_NOBODY = "no gateway is in front of this host, to send requests to a second server"
_FIX = "Write `swap: auto`, or give its group a gateway (docs/gateway.md)."
