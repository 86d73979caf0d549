"""Checks of names: groups, hosts and files that have no meaning, or more than one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sparkwright import visible
from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document
from sparkwright.project.documents.validation import nearest
from sparkwright.project.inventory.glance import GROUPS_FILE
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.models import GroupFile, HostFile
from sparkwright.project.inventory.patterns import EVERYONE

#: characters with a meaning in patterns
SIGNS = re.compile(r"[,:!&*?\[\]]|^\s|\s$|^$")
SIGNS_SHOWN = "`, : ! & * ? [ ]` have a meaning in patterns"


@dataclass(frozen=True)
class Own:
    """A host's own file."""

    file: HostFile
    source: Document


@dataclass(frozen=True)
class Groups:
    """The groups of groups.yml, by name."""

    checked: Mapping[str, GroupFile]
    source: Document


#: message, "file:line" and fix
Mistake = tuple[str, str, str]


def refuse(hosts: Mapping[str, Own], groups: Groups) -> None:
    """Raise Refused with file and line for the first such name."""
    for rule in (_host_names, _groups_of, _members):
        for message, where, fix in rule(hosts, groups):
            raise Refused(message, where=where, fix=fix)


def refuse_source(host: Host, hosts: Mapping[str, Host]) -> None:
    """Raise Refused for a host that copies its model from a host that does not exist."""
    if host.model_from and host.model_from not in hosts:
        message = f"`model_from`: no host named '{visible.name(host.model_from)}'."
        raise Refused(message, where=host.set_at["model_from"], fix=nearest(host.model_from, hosts))


def _host_names(hosts: Mapping[str, Own], groups: Groups) -> Iterator[Mistake]:
    named = {group: own.source.where("groups", n) for own in hosts.values() for n, group in enumerate(own.file.groups)}
    named |= {group: groups.source.where(group) for group in groups.checked}
    for name, own in hosts.items():
        where = own.source.where()
        if name == EVERYONE:
            yield f"a host cannot be named `{EVERYONE}`: that means all hosts.", where, "Rename the file."
        if name in named:
            message = f"the host has the same name as a group ({named[name]})."
            yield message, where, "Rename one of them: `--host` is ambiguous."
        if SIGNS.search(name):
            message = f"no pattern can match this host: {SIGNS_SHOWN}."
            yield message, where, "Rename the file; ssh connects to `address:`."


def _groups_of(hosts: Mapping[str, Own], groups: Groups) -> Iterator[Mistake]:
    """Yield mistakes in the groups that hosts name. A group that several hosts name needs no entry in groups.yml."""
    times = Counter(group for own in hosts.values() for group in set(own.file.groups))
    named = [
        (own.source.where("groups", n), group) for own in hosts.values() for n, group in enumerate(own.file.groups)
    ]
    for where, group in named:
        if group not in groups.checked and group != EVERYONE and times[group] == 1:
            others = sorted({*groups.checked, *(name for name, count in times.items() if count > 1)} - {EVERYONE})
            near = nearest(group, others) if others else ""
            fix = f"{near} To create it, add `{visible.name(group)}: {{}}` to hosts/{GROUPS_FILE}.".strip()
            yield f"no group `{visible.name(group)}` is defined elsewhere.", where, fix
        yield from _unmatched(group, where)


def _members(hosts: Mapping[str, Own], groups: Groups) -> Iterator[Mistake]:
    for group, file in groups.checked.items():
        yield from _unmatched(group, groups.source.where(group))
        if group == EVERYONE and file.hosts:
            message = f"`{EVERYONE}` means all hosts: it takes no `hosts`."
            yield message, groups.source.where(group, "hosts"), "Remove it, or name another group."
        for n, name in enumerate(file.hosts):
            if name not in hosts:
                message = f"`{visible.name(group)}.hosts`: no host named '{visible.name(name)}'."
                yield message, groups.source.where(group, "hosts", n), nearest(name, hosts)


def _unmatched(group: str, where: str) -> Iterator[Mistake]:
    if SIGNS.search(group):
        yield f"no pattern can match the group `{visible.name(group)}`: {SIGNS_SHOWN}.", where, ""
