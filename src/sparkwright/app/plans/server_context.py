"""What is around a server: the gateways in front of it, its machine's other servers, those that it takes turns with, and one that
may take its requests meanwhile."""

from __future__ import annotations

from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.plans import interim, other_servers, turns
from sparkwright.project.gateway.before import in_front_of
from sparkwright.project.inventory.host import Host


def of(selection: Selection, host: Host) -> dict[str, Any]:
    """As `recipe.scope` takes it: gateways, beside, turns, interim. Raises Refused for what the servers cannot share."""
    root, inventory = selection.project.root, selection.inventory
    gateways = in_front_of(root, inventory, host)
    others = {"other_servers": other_servers.of(selection, host), "turns": turns.of(root, inventory, host)}
    return {"gateways": gateways, **others, "interim": interim.of(selection, host)}
