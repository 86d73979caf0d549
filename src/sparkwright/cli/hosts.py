"""The first thing a command does: find its hosts and start connecting, before it imports what plans for them."""

from __future__ import annotations

from dataclasses import dataclass

from sparkwright.cli.project import Project
from sparkwright.errors import Refused
from sparkwright.fleet import Fleet, Member
from sparkwright.inventory import Host, Inventory


@dataclass(frozen=True, slots=True)
class Chosen:
    """The hosts a command is for, in the project of the current folder."""

    project: Project
    inventory: Inventory
    hosts: list[Host]
    fleet: Fleet


def choose_left(playbook: str, pattern: str) -> Chosen:
    """The hosts that are left of a rolling run (`--resume`). Raises Refused when there is none, or --host means others."""
    from sparkwright.rolling.record import RecordFile, refuse_other_hosts

    project = Project.here()
    record = RecordFile(project.root, playbook).load()
    if pattern:
        refuse_other_hosts(record, [host.name for host in choose(pattern).hosts])
    return choose(",".join(record.left))


def choose(pattern: str) -> Chosen:
    """The hosts of a pattern; not connected yet. Raises Refused for a pattern that names none."""
    project = Project.here()
    inventory = Inventory.load(project.root)
    if not pattern:
        raise Refused("say which host: --host NAME.", fix=f"There are: {', '.join(inventory.names())}.")
    hosts = inventory.match(pattern)
    return Chosen(project, inventory, hosts, Fleet([Member(host) for host in hosts]))


def everyone() -> str:
    """Every host but sandboxes, which a question would start; those when there is nothing else. As a pattern."""
    hosts = Inventory.load(Project.here().root).hosts.values()
    return ",".join([one.name for one in hosts if one.connection != "sandbox"] or [one.name for one in hosts])
