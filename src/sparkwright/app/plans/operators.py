"""Keys for draining a server at its gateway: each host has a key of its own, and the gateway knows its SHA-256."""

from __future__ import annotations

from collections.abc import Callable

from sparkwright.app.connect import Selection
from sparkwright.errors import SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member, hang_up
from sparkwright.project.gateway import routes


def hashes(selection: Selection, at: Member, *, check: bool, tell: Callable[[str], None]) -> dict[str, str]:
    """Return the SHA-256 of each host's key, by host name; empty for a host that could not be asked, which is reported.

    Args:
        at: the gateway's own host.
        check: no host creates a key.
    """
    from sparkwright.app.plans.gateways import of_host
    from sparkwright.app.questions.one_module import ask_module

    found: dict[str, str] = {}
    servers = routes.servers(selection.project.root, selection.inventory, of_host(selection.inventory, at.host))
    for name in dict.fromkeys(server.host.machine for server in servers):
        member = at if name == at.host.machine else Member(selection.inventory.machines[name])
        try:
            found[name] = ask_module(Fleet([member]), member, "gateway_own_key", {}, check=check)["sha256"]
        except SparkwrightError as error:
            found[name] = ""
            tell(f"{name} could not be asked for its key, and cannot drain itself with a new one: {error.message}")
        finally:
            if member is not at:
                hang_up([member])
    return found
