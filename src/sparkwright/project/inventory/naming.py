"""Names that mean nothing, or two things: groups, hosts and files of an inventory that no pattern and no other file can reach."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparkwright.errors import Refused
from sparkwright.project.documents.checked import nearest
from sparkwright.project.documents.document import Document
from sparkwright.project.inventory.glance import GROUPS_FILE
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.models import GroupFile, HostFile
from sparkwright.project.inventory.patterns import EVERYONE
from sparkwright.visible import one_line

#: signs that mean something in a pattern
SIGNS = re.compile(r"[,:!&*?\[\]]|^\s|\s$|^$")
SIGNS_SHOWN = "`, : ! & * ? [ ]` have a meaning in patterns"


@dataclass(frozen=True)
class Own:
    """A host's own file."""

    file: HostFile
    source: Document


@dataclass(frozen=True)
class Groups:
    """groups.yml, its groups by name."""

    checked: Mapping[str, GroupFile]
    source: Document


def refuse(hosts: Mapping[str, Own], groups: Groups) -> None:
    """Raises Refused with file and line for the first such name."""
    for rule in (_host_names(hosts, groups), _groups_of(hosts, groups), _members(hosts, groups)):
        for refused in rule:
            raise refused


def refuse_source(host: Host, hosts: Mapping[str, Host]) -> None:
    """Raises Refused for a host that copies its model from one that isn't there."""
    if host.model_from and host.model_from not in hosts:
        message = f"`model_from`: no host named '{one_line(host.model_from)}'."
        raise Refused(message, where=host.set_at["model_from"], fix=nearest(host.model_from, hosts))


def _host_names(hosts: Mapping[str, Own], groups: Groups) -> Iterator[Refused]:
    named = {group: own.source.where("groups", n) for own in hosts.values() for n, group in enumerate(own.file.groups)}
    named |= {group: groups.source.where(group) for group in groups.checked}
    for name, own in hosts.items():
        where = own.source.where()
        if name == EVERYONE:
            yield Refused(
                f"a host cannot be named `{EVERYONE}`: that means all hosts.", where=where, fix="Rename the file."
            )
        if name in named:
            message = f"the host has the same name as a group ({named[name]})."
            yield Refused(message, where=where, fix="Rename one of them: `--host` is ambiguous.")
        if SIGNS.search(name):
            fix = "Rename the file; ssh connects to `address:`."
            yield Refused(f"no pattern can match this host: {SIGNS_SHOWN}.", where=where, fix=fix)


def _groups_of(hosts: Mapping[str, Own], groups: Groups) -> Iterator[Refused]:
    """Groups that hosts name. Several hosts of one group need no entry in groups.yml."""
    times = Counter(group for own in hosts.values() for group in set(own.file.groups))
    for own in hosts.values():
        for n, group in enumerate(own.file.groups):
            if group not in groups.checked and group != EVERYONE and times[group] == 1:
                others = sorted({*groups.checked, *(name for name, count in times.items() if count > 1)} - {EVERYONE})
                near = nearest(group, others) if others else ""
                fix = f"{near} To create it, add `{one_line(group)}: {{}}` to hosts/{GROUPS_FILE}.".strip()
                message = f"no group `{one_line(group)}` is defined elsewhere."
                yield Refused(message, where=own.source.where("groups", n), fix=fix)
            if SIGNS.search(group):
                yield Refused(
                    f"no pattern can match the group `{one_line(group)}`: {SIGNS_SHOWN}.",
                    where=own.source.where("groups", n),
                )


def _members(hosts: Mapping[str, Own], groups: Groups) -> Iterator[Refused]:
    for group, file in groups.checked.items():
        if SIGNS.search(group):
            yield Refused(
                f"no pattern can match the group `{one_line(group)}`: {SIGNS_SHOWN}.", where=groups.source.where(group)
            )
        if group == EVERYONE and file.hosts:
            message = f"`{EVERYONE}` means all hosts: it takes no `hosts`."
            yield Refused(message, where=groups.source.where(group, "hosts"), fix="Remove it, or name another group.")
        for n, name in enumerate(file.hosts):
            if name not in hosts:
                message = f"`{one_line(group)}.hosts`: no host named '{one_line(name)}'."
                yield Refused(message, where=groups.source.where(group, "hosts", n), fix=nearest(name, hosts))
