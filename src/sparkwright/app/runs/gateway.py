"""Deploying a group's gateway, which is selected by the name of the group or of the gateway's host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkwright.app.connect import Selection, machines, reach
from sparkwright.app.plans import gateways
from sparkwright.app.questions import host_requests
from sparkwright.app.runs import playbooks
from sparkwright.app.runs.options import DeployOptions
from sparkwright.app.runs.presenters import Listener
from sparkwright.console.out import say_error, say_prose
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.fleet.member import hang_up
from sparkwright.program import name as program
from sparkwright.project import gateway_routes
from sparkwright.project.documents.validation import nearest
from sparkwright.project.folder import Project
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.inventory import Inventory

DEPLOY, ROLLBACK = "gateway/deploy", "gateway/rollback"


def deploy(options: DeployOptions, on_event: Listener | None = None) -> list[int]:
    """Run the playbook on the gateway's host and return its exit code. Raises Refused before any host is contacted."""
    project = Project.here()
    inventory = Inventory.load(project.root)
    gateway = chosen(inventory, options.host)
    gateway_routes.routed(project.root, inventory, gateway)
    gateways.refuse_without_key(gateway)
    gateways.refuse_without_haproxy(inventory, gateway)
    codes = playbooks.run(DEPLOY, "gateway.deploy", replace(options, host=gateway.host), on_event=on_event)
    shown = not (options.check or options.dry_run or options.json or on_event is not None)
    if shown and {*codes} <= {Exit.OK, Exit.INCONCLUSIVE}:
        url, way = gateways.base_url(inventory, gateway)
        say_prose(f"Clients of {gateway.name}: base URL {url}" + (f" ({way})" if way else "") + _with_key(gateway))
    return codes


def _with_key(gateway: Gateway) -> str:
    return ", with the key of `gateway.key`" if gateway.file.key else ""


def rollback(options: DeployOptions) -> list[int]:
    """Run the rollback playbook on the gateway's host, without reading the current routes. Return its exit code."""
    inventory = Inventory.load(Project.here().root)
    gateway = chosen(inventory, options.host)
    gateways.refuse_without_key(gateway)
    gateways.refuse_without_haproxy(inventory, gateway)
    return playbooks.run(ROLLBACK, "gateway.rollback", replace(options, host=gateway.host))


def chosen(inventory: Inventory, name: str) -> Gateway:
    """Return the gateway of a group or on a host. Raises Refused if there is none."""
    by_host = {gateway.host: gateway for gateway in inventory.gateways.values()}
    found = inventory.gateways.get(name) or by_host.get(name)
    if found is not None:
        return found
    if not inventory.gateways:
        fix = "Add `gateway: {host: spark1, port: 8080, tls: none}` to a group in hosts/groups.yml (docs/gateway.md)."
        raise Refused("no group has a gateway.", fix=fix)
    if not name:
        raise Refused("no gateway was named: pass --host GROUP.", fix=f"There are: {', '.join(inventory.gateways)}.")
    raise Refused(f"no gateway is called '{name}'.", fix=nearest(name, inventory.gateways))


#: options of a deploy that apply to the gateway deploys after it
KEPT = ("check", "diff", "verbose", "wait", "json")


def deploy_behind(selection: Selection, options: DeployOptions, on_event: Listener | None = None) -> list[int]:
    """Redeploy the gateways in front of changed servers if they are deployed. Return their exit codes.

    If a gateway can't be deployed, the servers stay in place. The error is printed, with exit code FAILED instead of REFUSED.

    Args:
        options: the deploy's options.
        on_event: called with each event instead of printing it.
    """
    changed = {member.host.machine for member in selection.fleet.members if _changed(member.recap)}
    if options.check or not changed:
        return []
    behind = [gateway for gateway in selection.inventory.gateways.values() if changed & {*gateway.members}]
    return [code for gateway in behind for code in _deploy_again(gateway, options, on_event)]


def _changed(recap: Mapping[str, Any] | None) -> bool:
    """Return True if the run left a new server in place, even one whose throughput could not be judged."""
    return recap is not None and recap["exit"] in (Exit.OK, Exit.INCONCLUSIVE) and recap["changed"] > 0


def _deploy_again(gateway: Gateway, options: DeployOptions, on_event: Listener | None) -> list[int]:
    try:
        if not _stands(gateway):
            return []
        if not options.json and on_event is None:
            say_prose(f"A server behind the gateway {gateway.name} was changed: gateway.deploy follows.")
        kept = {name: getattr(options, name) for name in KEPT}
        codes = deploy(DeployOptions(host=gateway.name, **kept), on_event)
    except SparkwrightError as error:
        if on_event is not None:
            raise
        say_error(error, json=options.json, host=gateway.host)
        codes = [int(error.exit)]
    codes = [Exit.FAILED if code == Exit.REFUSED else code for code in codes]  # the server was touched
    if any(codes) and on_event is None:
        fix = f"`{program()} gateway.deploy --host {gateway.name}` routes what is served now"
        say_prose(f"The server is deployed, the gateway {gateway.name} is not: {fix}.", file=sys.stderr)
    return codes


def _stands(gateway: Gateway) -> bool:
    """Return True if the gateway was deployed. Raises if its host can't be queried."""
    members = machines(reach(gateway.host, "light")).fleet.members
    try:
        (answer,) = host_requests.everyone(members, lambda member: {"verb": "status", "gateway": True}, "status")
    finally:
        hang_up(members)
    if isinstance(answer, SparkwrightError):
        raise answer
    return bool(answer["gateway"])
