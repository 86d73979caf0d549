"""The `gateway.deploy` and `gateway.rollback` commands, and the deploy of gateways in front of changed servers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkwright.app.connect import Selection, connect_hosts, select_machines
from sparkwright.app.plans import gateways
from sparkwright.app.queries import host_requests
from sparkwright.app.runs import playbooks
from sparkwright.app.runs.deploy_options import DeployOptions
from sparkwright.app.runs.presenters import Listener
from sparkwright.console.command_output import print_error, print_prose
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.fleet.member import close_links
from sparkwright.program import name as program_name
from sparkwright.project import gateway_certificate, gateway_routes
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.folder import Project
from sparkwright.project.inventory.groups import Gateway
from sparkwright.project.inventory.inventory import Inventory

DEPLOY_PLAYBOOK, ROLLBACK_PLAYBOOK = "gateway/deploy", "gateway/rollback"
#: options of a server's deploy that also apply to the deploy of its gateway
FORWARDED_OPTIONS = ("check", "diff", "verbose", "wait", "json")
#: exit codes after which the gateway is deployed; INCONCLUSIVE: a model has no server that is up
DEPLOYED_EXITS = {Exit.OK, Exit.INCONCLUSIVE}


def deploy(options: DeployOptions, on_event: Listener | None = None) -> list[int]:
    """Deploy the gateway that `options.host` names, and return the exit codes. Raises Refused before any host is contacted."""
    project = Project.here()
    inventory = Inventory.load(project.root)
    gateway = select_gateway(inventory, options.host)
    gateway_routes.build_routes(project.root, inventory, gateway)
    gateways.check_client_key(gateway)
    gateways.check_haproxy(inventory, gateway)
    codes = playbooks.run(DEPLOY_PLAYBOOK, "gateway.deploy", replace(options, host=gateway.host), on_event=on_event)
    is_silent = options.check or options.dry_run or options.list_tasks or options.json or on_event is not None
    if not is_silent and {*codes} <= DEPLOYED_EXITS:
        url, access_hint = gateways.base_url(inventory, gateway)
        print_prose(
            f"Clients of {gateway.name}: base URL {url}"
            + (f" ({access_hint})" if access_hint else "")
            + (", with the key of `gateway.key`" if gateway.file.key else "")
        )
        if mismatch := gateway_certificate.describe_name_mismatch(project.root, gateway, url):
            print_prose(mismatch)
    return codes


def rollback(options: DeployOptions) -> list[int]:
    """Roll back the gateway that `options.host` names, and return the exit codes. Its current routes may be invalid."""
    inventory = Inventory.load(Project.here().root)
    gateway = select_gateway(inventory, options.host)
    gateways.check_client_key(gateway)
    gateways.check_haproxy(inventory, gateway)
    return playbooks.run(ROLLBACK_PLAYBOOK, "gateway.rollback", replace(options, host=gateway.host))


def select_gateway(inventory: Inventory, name: str) -> Gateway:
    """Return the gateway of a group, or the gateway that runs on a host. Raises Refused if there is none."""
    by_host = {gateway.host: gateway for gateway in inventory.gateways.values()}
    gateway = inventory.gateways.get(name) or by_host.get(name)
    if gateway is not None:
        return gateway
    if not inventory.gateways:
        fix = "Add `gateway: {host: spark1, port: 8080, tls: none}` to a group in hosts/groups.yml (docs/gateway.md)."
        raise Refused("no group has a gateway.", fix=fix)
    if not name:
        raise Refused("no gateway selected: pass --host GROUP.", fix=f"Gateways: {', '.join(inventory.gateways)}.")
    raise Refused(f"no gateway is called '{name}'.", fix=suggest_name(name, inventory.gateways))


def redeploy_gateways(selection: Selection, options: DeployOptions, on_event: Listener | None = None) -> list[int]:
    """Deploy the gateways in front of changed servers, unless they have never been deployed, and return the exit codes.

    If that fails, the servers stay in place and the error is printed. REFUSED becomes FAILED, because the servers were changed.
    """
    changed_machines = {member.host.machine for member in selection.fleet.members if _has_new_server(member.recap)}
    if options.check or not changed_machines:
        return []
    codes = []
    for gateway in selection.inventory.gateways.values():
        if changed_machines & {*gateway.members}:
            codes += _redeploy(gateway, options, on_event)
    return codes


def _has_new_server(recap: Mapping[str, Any] | None) -> bool:
    """Return True if the run replaced the server, even if the throughput of the new one could not be measured."""
    return recap is not None and recap["exit"] in (Exit.OK, Exit.INCONCLUSIVE) and recap["changed"] > 0


def _redeploy(gateway: Gateway, options: DeployOptions, on_event: Listener | None) -> list[int]:
    try:
        if not _is_deployed(gateway):
            return []
        if not options.json and on_event is None:
            print_prose(f"A server behind the gateway {gateway.name} was changed: gateway.deploy follows.")
        forwarded_options = {name: getattr(options, name) for name in FORWARDED_OPTIONS}
        codes = deploy(DeployOptions(host=gateway.name, **forwarded_options), on_event)
    except SparkwrightError as error:
        if on_event is not None:
            raise
        print_error(error, json=options.json, host=gateway.host)
        codes = [int(error.exit)]
    codes = [Exit.FAILED if code == Exit.REFUSED else code for code in codes]  # the server was changed
    if not {*codes} <= DEPLOYED_EXITS and on_event is None:
        fix = f"run `{program_name()} gateway.deploy --host {gateway.name}`"
        print_prose(f"The server is deployed, but the gateway {gateway.name} is not: {fix}.", file=sys.stderr)
    return codes


def _is_deployed(gateway: Gateway) -> bool:
    """Return True if the gateway has ever been deployed. Raises an error if its host can't be queried."""
    members = select_machines(connect_hosts(gateway.host, "light")).fleet.members
    try:
        (answer,) = host_requests.query_members(members, lambda member: {"verb": "status", "gateway": True}, "status")
    finally:
        close_links(members)
    if isinstance(answer, SparkwrightError):
        raise answer
    return bool(answer["gateway"])
