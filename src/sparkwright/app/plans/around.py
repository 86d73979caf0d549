"""What is around a server: the gateways in front of it, its machine's other servers, and those that it takes turns with."""

from __future__ import annotations

from typing import Any

from sparkwright.app.connect import Chosen
from sparkwright.app.plans import beside, turns
from sparkwright.project.gateway.before import in_front_of
from sparkwright.project.inventory.host import Host


def of(chosen: Chosen, host: Host) -> dict[str, Any]:
    """As `recipe.scope` takes it: gateways, beside, turns. Raises Refused for what the servers cannot share."""
    root, inventory = chosen.project.root, chosen.inventory
    gateways = in_front_of(root, inventory, host)
    return {"gateways": gateways, "beside": beside.of(chosen, host), "turns": turns.of(root, inventory, host)}
