"""The first thing a command does: find its hosts and start connecting, before it imports what plans for them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from sparkwright.cli.project import Project
from sparkwright.errors import Refused
from sparkwright.fleet import Fleet, Member
from sparkwright.inventory import Host, Inventory
from sparkwright.remote import Need


@dataclass(frozen=True, slots=True)
class Chosen:
    """The hosts a command is for, in the project of the current folder."""

    project: Project
    inventory: Inventory
    hosts: list[Host]
    fleet: Fleet


def need_of(path: Path) -> Need:
    """What a playbook will ask of its hosts, guessed from the keys in its text: it is not read yet when connecting begins."""
    from sparkwright.modules.registry import NAMES, WITHOUT_ENGINE

    keys = set(re.findall(r"[a-z_]+(?=\s*:)", path.read_text(errors="replace")))
    return "engine" if keys & ({*NAMES, "include"} - WITHOUT_ENGINE) else "plan"


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
