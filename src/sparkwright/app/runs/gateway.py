"""The gateway of a group: found by the name of the group or of its host, checked, and deployed there."""

from __future__ import annotations

from typing import Any

from sparkwright.app.plans import gateways
from sparkwright.app.runs import playbooks
from sparkwright.console.out import say
from sparkwright.errors import Exit, Refused
from sparkwright.project import gateway_routes
from sparkwright.project.documents.validation import nearest
from sparkwright.project.folder import Project
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.inventory import Inventory

DEPLOY, ROLLBACK = "gateway/deploy", "gateway/rollback"


def deploy(**given: Any) -> list[int]:
    """Run the playbook on the gateway's host. Return its exit code. Raises Refused before any host is asked."""
    project = Project.here()
    inventory = Inventory.load(project.root)
    gateway = chosen(inventory, given["host"])
    gateway_routes.routed(project.root, inventory, gateway)
    gateways.refuse_without_key(gateway)
    codes = playbooks.run(DEPLOY, "gateway.deploy", **{**given, "host": gateway.host})
    shown = not (given["check"] or given["json"] or given.get("on_event"))
    if shown and {*codes} <= {Exit.OK, Exit.INCONCLUSIVE}:
        url, way = gateways.base_url(inventory, gateway)
        say(f"Clients of {gateway.name}: base URL {url}" + (f" ({way})" if way else "") + _with_key(gateway))
    return codes


def _with_key(gateway: Gateway) -> str:
    return ", with the key of `gateway.key`" if gateway.file.key else ""


def rollback(**given: Any) -> list[int]:
    """Run the rollback playbook on the gateway's host, without reading the present routes. Return its exit code."""
    gateway = chosen(Inventory.load(Project.here().root), given["host"])
    gateways.refuse_without_key(gateway)
    return playbooks.run(ROLLBACK, "gateway.rollback", **{**given, "host": gateway.host})


def chosen(inventory: Inventory, name: str) -> Gateway:
    """Return the gateway of a group, or on a host. Raises Refused if there is none."""
    by_host = {gateway.host: gateway for gateway in inventory.gateways.values()}
    found = inventory.gateways.get(name) or by_host.get(name)
    if found is not None:
        return found
    if not inventory.gateways:
        fix = "Add `gateway: {host: spark1, port: 8080, tls: none}` to a group in hosts/groups.yml (docs/gateway.md)."
        raise Refused("no group has a gateway.", fix=fix)
    if not name:
        raise Refused("say which gateway: --host GROUP.", fix=f"There are: {', '.join(inventory.gateways)}.")
    raise Refused(f"no gateway is called '{name}'.", fix=nearest(name, inventory.gateways))
