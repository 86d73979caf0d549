"""Everything a server's plan depends on besides its own recipe.

These are the gateways in front of it, the other servers of its machine, the servers that share its memory by turns, and an
interim server.
"""

from __future__ import annotations

from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.plans import interim, other_servers, turns
from sparkwright.project.gateway.before import in_front_of
from sparkwright.project.inventory.host import Host


def of(selection: Selection, host: Host) -> dict[str, Any]:
    """Return gateways, other servers, turns and interim server, as `recipe.scope` takes them.

    Raises Refused if the servers of a machine conflict.
    """
    root, inventory = selection.project.root, selection.inventory
    gateways = in_front_of(root, inventory, host)
    others = {"other_servers": other_servers.of(selection, host), "turns": turns.of(root, inventory, host)}
    return {"gateways": gateways, **others, "interim": interim.of(selection, host)}
