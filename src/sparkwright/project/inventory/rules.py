"""Checks of hosts and groups: their names, and no secret as a plain value."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any

from sparkwright import visible
from sparkwright.engines import engine
from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import nearest
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.models import GroupFile, HostFile, Shared
from sparkwright.project.inventory.patterns import EVERYONE, GROUPS_FILE
from sparkwright.trust.secret_names import PROXIES, password_of, plain_secrets

OUT_OF_URL = "Remove user and password from the URL."


def refuse(file: Shared, source: Document, at: Place = ()) -> None:
    """Raise Refused with file and line for the first mistake."""
    own = next((name for name in _key_variables() if name in file.secrets), "") if file.secrets else ""
    if own:
        fix = "Name its source in the recipe: `server_key: {env: SPARK_KEY}`. The checks then use it."
        message = f"`secrets.{own}`: a server key belongs in the recipe."
        raise Refused(message, where=source.where(*at, "secrets", own), fix=fix)
    found = {"env": file.env, "vars": file.vars}
    for place in plain_secrets(found):
        raise refusal(place, source, at, fix=OUT_OF_URL if place[-1] not in PROXIES and _is_url(found, place) else "")


def refusal(place: Place, source: Document, at: Place = (), *, fix: str = "") -> Refused:
    """Return the error for a secret as a plain value.

    Args:
        place: its place below `at`.
        fix: by default, a host's `secrets:`.
    """
    name = next(item for item in reversed(place) if isinstance(item, str))
    fix = fix or (
        f"Name its source under `secrets:` of the host, as {name}: {{env: {name}}}; "
        "it is then sent to the host over standard input only."
    )
    message = f"`{'.'.join(map(str, place))}` looks like a secret, readable by everyone."
    return Refused(message, where=source.where(*at, *place), fix=fix)


def _key_variables() -> list[str]:
    return [engine.key.variable for engine in map(engine.of, engine.TITLES) if engine.key]


def _is_url(file: Any, place: Place) -> bool:
    value = reduce(getitem, place, file)
    return isinstance(value, str) and bool(password_of(value))


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


def refuse_names(hosts: Mapping[str, Own], groups: Groups) -> None:
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
