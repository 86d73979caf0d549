"""The first step of a command: select its hosts and start connecting before the planning code is imported."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sparkwright.console.formatters import join_names
from sparkwright.defaults import FORKS
from sparkwright.errors import Refused, SparkwrightError
from sparkwright.project.documents import document
from sparkwright.project.folder import Project
from sparkwright.project.inventory import patterns, secret_source
from sparkwright.project.inventory.host import Host
from sparkwright.remote import RequestKind, open_link
from sparkwright.trust.secret_names import BECOME_PASSWORD

if TYPE_CHECKING:
    from sparkwright.fleet.fleet import Fleet
    from sparkwright.fleet.member import Member
    from sparkwright.project.inventory.inventory import Inventory


@dataclass(frozen=True, slots=True)
class SelectedHosts:
    """The hosts that a command selects, in the project of the current folder."""

    project: Project
    hosts: list[Host]
    fleet: Fleet


@dataclass(frozen=True, slots=True)
class Selection(SelectedHosts):
    """The hosts that a command selects, together with the whole inventory."""

    inventory: Inventory


class PendingConnections:
    """Connections to the hosts that match a pattern, started before the inventory is validated.

    The hosts come from a quick read of the host files (`read_ssh_hosts`).

    Args:
        pattern: host pattern, as for --host.
        request_kind: kind of requests that will follow; the runner on the host imports the modules that they need.
    """

    def __init__(self, pattern: str, request_kind: RequestKind) -> None:
        self.pattern = pattern
        self.request_kind = request_kind
        self.hosts = patterns.read_ssh_hosts(Project.here().root, pattern)[:FORKS]
        self._links = {host.name: (host.connection_settings, open_link(host, request_kind)) for host in self.hosts}

    def assign_links(self, members: Sequence[Member]) -> None:
        """Assign the connections to their members, and close the others.

        A member without a connection connects on its first request.
        """
        for member in members:
            member.request_kind = self.request_kind
            if self._links.get(member.host.name, ("",))[0] == member.host.connection_settings:
                member.link = self._links.pop(member.host.name)[1]
        self.close()

    def wait_until_connected(self) -> bool:
        """Wait for all connections. Return True if every one of them succeeded."""
        with contextlib.suppress(SparkwrightError):
            for _, link in self._links.values():
                link.wait_until_connected()
            return True
        return False

    def close(self) -> None:
        """Close the connections that are not assigned to a member."""
        for _, link in self._links.values():
            link.close()


def guess_request_kind(playbook: str) -> RequestKind:
    """Guess which kind of requests a playbook needs from the keys in its text, because connecting starts before it is parsed.

    Raises Refused if there is no such playbook.
    """
    from sparkwright.modules.registry import MODULES_WITHOUT_ENGINE, NAMES

    path = Project.here().playbook(playbook)
    keys = set(re.findall(r"(?<![a-z_])[a-z_]+(?=\s{0,20}:)", document.read_text(path)))
    return "engine" if keys & ({*NAMES, "include"} - MODULES_WITHOUT_ENGINE) else "plan"


def remaining_hosts_pattern(playbook: str, pattern: str) -> str:
    """Return the hosts that an interrupted rolling run has not reached yet (`--resume`), as a pattern.

    Hosts that its `--host` no longer selects, such as those removed from a group since, are left out.

    Raises Refused if there are none, or if --host selects other hosts.
    """
    from sparkwright.fleet.rollout import RecordFile, refuse_other_hosts

    project = Project.here()
    record = RecordFile(project.root, playbook).load()
    if record.pattern:
        removed_names = record.remove_unfinished([host.name for host in select_hosts(record.pattern).hosts])
        if not record.unfinished_hosts:
            message = f"nothing to resume: `--host {record.pattern}` no longer selects {join_names(removed_names)}."
            raise Refused(message, fix="Start a run without --resume.")
    if pattern:
        refuse_other_hosts(record, [host.name for host in select_hosts(pattern).hosts])
    return ",".join(record.unfinished_hosts)


def connect_hosts(pattern: str, request_kind: RequestKind = "engine") -> Selection:
    """Select the hosts that match a pattern and start connecting to them. Raises Refused as `select_hosts` does.

    Args:
        request_kind: kind of requests that will follow.
    """
    return complete_selection(PendingConnections(pattern, request_kind))


def complete_selection(pending: PendingConnections) -> Selection:
    """Return the selection for pending connections. Raises Refused as `select_hosts` does."""
    try:
        selection = select_hosts(pending.pattern)
        pending.assign_links(selection.fleet.members)
    finally:
        pending.close()
    selection.fleet.connect()
    return selection


def select_hosts(pattern: str) -> Selection:
    """Select the hosts that match a pattern without connecting. Raises Refused if none matches."""
    from sparkwright.fleet.fleet import Fleet
    from sparkwright.fleet.member import Member
    from sparkwright.project.inventory.inventory import Inventory

    project = Project.here()
    inventory = Inventory.load(project.root)
    if not pattern:
        raise Refused("no host was named: pass --host NAME.", fix=f"Hosts: {', '.join(inventory.names())}.")
    hosts = inventory.match(pattern)
    return Selection(project, hosts, Fleet([Member(host) for host in hosts]), inventory)


def select_machines(selection: Selection) -> Selection:
    """Return the machines of the selected hosts, without duplicates, for requests to machines instead of servers."""
    from sparkwright.fleet.fleet import Fleet
    from sparkwright.fleet.member import Member, close_links

    if not any(host.shared_machine for host in selection.hosts):
        return selection
    hosts = selection.inventory.machines_of(selection.hosts)
    members_by_machine: dict[str, Member] = {}
    for member in selection.fleet.members:
        members_by_machine.setdefault(member.host.machine, member)
    close_links(member for member in selection.fleet.members if members_by_machine[member.host.machine] is not member)
    members = [
        Member(host, link=members_by_machine[host.name].link, request_kind=members_by_machine[host.name].request_kind)
        for host in hosts
    ]
    return replace(selection, hosts=hosts, fleet=Fleet(members))


def assign_become_password(member: Member) -> None:
    """Set a member's secrets to the host's password for sudo, or to none if the host has no such secret."""
    secrets = secret_source.read_secrets(member.host)
    member.secrets = {name: secret for name, secret in secrets.items() if name == BECOME_PASSWORD}


def restrict_to_recipe(pattern: str, recipe: str) -> str:
    """Narrow a host pattern to the hosts that serve a recipe, and return it. Raises Refused for an invalid name.

    Args:
        recipe: name of the recipe; empty for all hosts.
    """
    if not recipe or not pattern:
        return pattern
    if forbidden := re.search(r"[,:!&*?\[\]]", recipe):
        raise Refused(f"--recipe must be the name of one recipe, which can't contain `{forbidden[0]}`.")
    return f"{pattern}:&/{recipe}"


def default_pattern() -> str:
    """Return a pattern for all hosts but sandboxes, which a request would start, or for the sandboxes if there are no others."""
    from sparkwright.project.inventory.inventory import Inventory

    hosts = Inventory.load(Project.here().root).hosts.values()
    return ",".join([host.name for host in hosts if host.connection != "sandbox"] or [host.name for host in hosts])
