"""Checks of hosts and groups that need only the inventory: names, no secret as a plain value, clusters and gateways."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import getitem
from typing import Any

from sparkwright import visible
from sparkwright.engines import engine
from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import nearest
from sparkwright.project.inventory.groups import Cluster, Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.models import GatewayFile, GroupFile, HostFile, Shared
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


def cluster_groups_found(
    hosts: Mapping[str, Own], groups: Groups, members: Mapping[str, tuple[str, ...]]
) -> dict[str, Cluster]:
    """Return the clusters by name. members: hosts of each group. Raises Refused with file and line for an invalid one."""
    for rule in (_cluster_heads, _cluster_sizes, _cluster_members):
        for message, where, fix in rule(hosts, groups, members):
            raise Refused(message, where=where, fix=fix)
    return {name: _cluster(name, hosts, groups, members[name]) for name in _cluster_names(groups)}


def member(host: Host, clusters: Iterable[Cluster]) -> Host:
    """Return a host with its cluster and the cluster's recipe; unchanged if it is in none."""
    mine = next((cluster for cluster in clusters if host.name in cluster.members), None)
    if mine is None:
        return host
    return replace(host, cluster=mine, recipe=mine.recipe, set_at={**host.set_at, "recipe": mine.where})


def _cluster_names(groups: Groups) -> list[str]:
    return [name for name, group in groups.checked.items() if group.cluster]


def _cluster(name: str, owns: Mapping[str, Own], groups: Groups, hosts: tuple[str, ...]) -> Cluster:
    about = groups.checked[name].cluster
    assert about is not None
    ranks = (about.head, *(host for host in hosts if host != about.head))
    where = groups.source.where(name, "cluster", "recipe")
    fabrics = (owns[rank].file.fabric for rank in ranks)
    addresses = tuple(fabric.address if fabric else "" for fabric in fabrics)
    return Cluster(name, about.recipe, ranks, addresses, about.port, about.barrier_port, where)


def _cluster_heads(
    hosts: Mapping[str, Own], groups: Groups, members: Mapping[str, tuple[str, ...]]
) -> Iterator[Mistake]:
    for name in _cluster_names(groups):
        about, where = groups.checked[name].cluster, groups.source.where(name, "cluster", "head")
        if about is None or about.head in members[name]:
            continue
        head, key = visible.name(about.head), visible.name(name)
        if about.head in hosts:
            yield f"`{key}.cluster.head`: {head} is not in the group.", where, f"Add it to `{key}.hosts`."
        yield f"`{key}.cluster.head`: no host named '{head}'.", where, nearest(about.head, members[name] or hosts)


def _cluster_sizes(
    hosts: Mapping[str, Own], groups: Groups, members: Mapping[str, tuple[str, ...]]
) -> Iterator[Mistake]:
    for name in _cluster_names(groups):
        where, about = groups.source.where(name, "cluster"), groups.checked[name].cluster
        if name == EVERYONE:
            yield f"`{EVERYONE}` cannot be a cluster.", where, "Make a group of its hosts."
        if len(members[name]) < 2:
            key = visible.name(name)
            yield f"the cluster {key} has one host.", where, f"List its hosts as `{key}.hosts`, or remove `cluster`."
        if about is not None and about.port == about.barrier_port:
            yield "`port` and `barrier_port` are the same.", where, "Use another port for one of them."


def _cluster_members(
    hosts: Mapping[str, Own], groups: Groups, members: Mapping[str, tuple[str, ...]]
) -> Iterator[Mistake]:
    taken: dict[str, str] = {}
    for name in _cluster_names(groups):
        for host in members[name]:
            own = hosts[host]
            if host in taken:
                message = f"{host} is in two clusters, {visible.name(taken[host])} and {visible.name(name)}."
                yield message, groups.source.where(name, "cluster"), f"A host serves one. Edit hosts/{GROUPS_FILE}."
            if own.file.recipe:
                message = f"{host} is a member of the cluster {visible.name(name)}, which serves a recipe of its own."
                yield message, own.source.where("recipe"), "Remove `recipe` here, or the host from the group."
            taken[host] = name


KEYS = tuple(GatewayFile.model_fields)


def gateways_found(groups: Groups, members: Mapping[str, tuple[str, ...]]) -> dict[str, Gateway]:
    """Return the gateways by group. members: hosts of each group. Raises Refused with file and line for an invalid one."""
    gateways = {
        name: Gateway(
            name, group.gateway.host, members[name], group.gateway, _gateway_places(groups, name, group.gateway)
        )
        for name, group in groups.checked.items()
        if group.gateway is not None
    }
    for message, where, fix in _gateway_mistakes(gateways, members):
        raise Refused(message, where=where, fix=fix)
    return gateways


def refuse_unasked(hosts: Iterable[Host], gateways: Mapping[str, Gateway]) -> None:
    """Raise Refused, with file and line, for a server that requests may wake and that no gateway routes to."""
    for host in hosts:
        if host.wake.on_request and not any(host.machine in gateway.members for gateway in gateways.values()):
            message = (
                f"`wake: on_request` of {host.recipe}: no gateway routes to {host.machine}, so nobody can ask for it."
            )
            fix = f"In hosts/{GROUPS_FILE}: a group with {host.machine} and a `gateway`; or remove `wake`."
            raise Refused(message, where=host.set_at["recipe"], fix=fix)


def _gateway_places(groups: Groups, name: str, file: GatewayFile) -> dict[str, str]:
    at = (name, "gateway")
    written = [key for key in KEYS if key in file.model_fields_set]
    return {"": groups.source.where(*at)} | {key: groups.source.where(*at, key) for key in written}


def _gateway_mistakes(gateways: Mapping[str, Gateway], members: Mapping[str, tuple[str, ...]]) -> Iterator[Mistake]:
    hosts, taken = {host for group in members.values() for host in group}, dict[str, str]()
    for name, gateway in gateways.items():
        shown, key = visible.name(gateway.host), visible.name(name)
        if gateway.host not in hosts:
            yield (
                f"`{key}.gateway.host`: no host named '{shown}'.",
                gateway.where("host"),
                nearest(gateway.host, gateway.members),
            )
        if gateway.host not in gateway.members:
            message = f"`{key}.gateway.host`: {shown} is not in the group."
            yield message, gateway.where("host"), f"Add it to `{key}.hosts`; without a recipe it serves no model."
        if gateway.host in taken:
            message = f"{shown} is the gateway of two groups, {visible.name(taken[gateway.host])} and {key}."
            yield message, gateway.where("host"), f"A host has one. Edit hosts/{GROUPS_FILE}."
        taken[gateway.host] = name
        for stranger in sorted(gateway.file.addresses.keys() - {*gateway.members}):
            message = f"`{key}.gateway.addresses`: {visible.name(stranger)} is not in the group."
            yield message, gateway.where("addresses"), nearest(stranger, gateway.members)
