"""Deploy of the gateways after a deploy that changed a server behind them, so that they route the present servers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from sparkwright.app.connect import Selection, machines, reach
from sparkwright.app.questions import host_requests
from sparkwright.app.runs import gateway as gateways
from sparkwright.app.runs.presenters import Listener
from sparkwright.console.out import say, say_error
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.member import hang_up
from sparkwright.program import name as program
from sparkwright.project.inventory.groups import Gateway

#: options of a deploy that concern only servers
OF_SERVERS = ("canary", "serial", "max_fail_percentage", "resume", "skip_unreachable", "rollback")


def deployed(selection: Selection, given: Mapping[str, Any], on_event: Listener | None = None) -> list[int]:
    """Deploy each deployed gateway in front of a changed server again. Return their exit codes.

    If a gateway can't be deployed, the servers stay. The error is printed, with exit code FAILED instead of REFUSED.

    Args:
        given: options of the deploy.
        on_event: called with each event instead of printing it.
    """
    changed = {member.host.machine for member in selection.fleet.members if _changed(member.recap)}
    if given["check"] or not changed:
        return []
    behind = [gateway for gateway in selection.inventory.gateways.values() if changed & {*gateway.members}]
    return [code for gateway in behind for code in _deployed(gateway, given, on_event)]


def _changed(recap: Mapping[str, Any] | None) -> bool:
    """Return True if the run left another server in place.

    A server whose throughput could not be judged counts too.
    """
    return recap is not None and recap["exit"] in (Exit.OK, Exit.INCONCLUSIVE) and recap["changed"] > 0


def _deployed(gateway: Gateway, given: Mapping[str, Any], on_event: Listener | None) -> list[int]:
    try:
        if not _stands(gateway):
            return []
        if not given["json"] and on_event is None:
            say(f"A server behind the gateway {gateway.name} was changed: gateway.deploy follows.")
        plain = {name: value for name, value in given.items() if name not in OF_SERVERS}
        everything = {"tags": "", "skip_tags": "", "start_at_task": "", "host": gateway.name}
        codes = gateways.deploy(**{**plain, **everything, "on_event": on_event})
    except SparkwrightError as error:
        if on_event is not None:
            raise
        say_error(error, json=given["json"], host=gateway.host)
        codes = [int(error.exit)]
    codes = [Exit.FAILED if code == Exit.REFUSED else code for code in codes]  # the server was touched
    if any(codes) and on_event is None:
        fix = f"`{program()} gateway.deploy --host {gateway.name}` routes what is served now"
        say(f"The server is deployed, the gateway {gateway.name} is not: {fix}.", file=sys.stderr)
    return codes


def _stands(gateway: Gateway) -> bool:
    """Return True if the gateway was deployed. Raises if its host can't be asked."""
    members = machines(reach(gateway.host, "light")).fleet.members
    try:
        (answer,) = host_requests.everyone(members, lambda member: {"verb": "status", "gateway": True}, "status")
    finally:
        hang_up(members)
    if isinstance(answer, SparkwrightError):
        raise answer
    return bool(answer["gateway"])
