"""The hosts of the inventory, as `hosts` prints them."""

from __future__ import annotations

from collections.abc import Sequence

from sparkwright.console import grid, plain_table
from sparkwright.console.out import say_json
from sparkwright.project.inventory.host import Host

COLUMNS = grid.columns(("HOST", 0), ("ADDRESS", 0), ("GROUPS", 1), ("RECIPE", 0))


def show(hosts: Sequence[Host], *, json: bool) -> None:
    """Print one line per host: address, groups, recipe."""
    if json:
        for host in hosts:
            about = {"host": host.name, "connection": host.connection, "address": host.address}
            say_json({**about, "groups": list(host.groups), "recipe": host.recipe})
        return
    ways = [host.connection if host.connection != "ssh" else f"ssh {host.address}" for host in hosts]
    rows = [(host.name, way, ",".join(host.groups), host.recipe or "-") for host, way in zip(hosts, ways, strict=True)]
    plain_table.show(COLUMNS, rows)
