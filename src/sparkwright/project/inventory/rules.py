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
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.inventory.groups import Cluster, Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.models import GatewayFile, GroupFile, HostFile, Shared
from sparkwright.project.inventory.patterns import ALL_HOSTS, GROUPS_FILE
from sparkwright.trust.secret_names import PROXY_VARIABLES, find_plain_secrets, url_password

URL_PASSWORD_FIX = "Remove user and password from the URL."


def refuse_secrets(file: Shared, source: Document, at: Place = ()) -> None:
    """Raise Refused with file and line for the first mistake."""
    server_key_name = next((name for name in _key_variables() if name in file.secrets), "") if file.secrets else ""
    if server_key_name:
        fix = "Name its source in the recipe: `server_key: {env: SPARK_KEY}`. The checks then use it."
        message = f"`secrets.{server_key_name}`: a server key belongs in the recipe."
        raise Refused(message, where=source.where(*at, "secrets", server_key_name), fix=fix)
    values = {"env": file.env, "vars": file.vars}
    for place in find_plain_secrets(values):
        raise secret_error(
            place,
            source,
            at,
            fix=URL_PASSWORD_FIX if place[-1] not in PROXY_VARIABLES and _is_url_with_password(values, place) else "",
        )


def secret_error(place: Place, source: Document, at: Place = (), *, fix: str = "") -> Refused:
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
    return [engine.key.variable for engine in map(engine.get_engine, engine.TITLES) if engine.key]


def _is_url_with_password(file: Any, place: Place) -> bool:
    value = reduce(getitem, place, file)
    return isinstance(value, str) and bool(url_password(value))


#: characters with a meaning in patterns
PATTERN_SIGNS = re.compile(r"[,:!&*?\[\]]|^\s|\s$|^$")
PATTERN_SIGNS_HINT = "`, : ! & * ? [ ]` have a meaning in patterns"


@dataclass(frozen=True)
class HostDocument:
    """A host's own file."""

    file: HostFile
    source: Document


@dataclass(frozen=True)
class GroupsDocument:
    """The groups of groups.yml, by name."""

    checked: Mapping[str, GroupFile]
    source: Document


#: message, "file:line" and fix
Mistake = tuple[str, str, str]


def refuse_names(hosts: Mapping[str, HostDocument], groups: GroupsDocument) -> None:
    """Raise Refused with file and line for the first such name."""
    for rule in (_check_host_names, _check_host_groups, _check_group_members):
        for message, where, fix in rule(hosts, groups):
            raise Refused(message, where=where, fix=fix)


def refuse_unknown_source(host: Host, hosts: Mapping[str, Host]) -> None:
    """Raise Refused for a host that copies its model from a host that does not exist."""
    if host.model_from and host.model_from not in hosts:
        message = f"`model_from`: no host named '{visible.display_name(host.model_from)}'."
        raise Refused(message, where=host.set_at["model_from"], fix=suggest_name(host.model_from, hosts))


def _check_host_names(hosts: Mapping[str, HostDocument], groups: GroupsDocument) -> Iterator[Mistake]:
    group_locations = {
        group: own.source.where("groups", n) for own in hosts.values() for n, group in enumerate(own.file.groups)
    }
    group_locations |= {group: groups.source.where(group) for group in groups.checked}
    for name, own in hosts.items():
        where = own.source.where()
        if name == ALL_HOSTS:
            yield f"a host cannot be named `{ALL_HOSTS}`: that means all hosts.", where, "Rename the file."
        if name in group_locations:
            message = f"the host has the same name as a group ({group_locations[name]})."
            yield message, where, "Rename one of them: `--host` is ambiguous."
        if PATTERN_SIGNS.search(name):
            message = f"no pattern can match this host: {PATTERN_SIGNS_HINT}."
            yield message, where, "Rename the file; ssh connects to `address:`."


def _check_host_groups(hosts: Mapping[str, HostDocument], groups: GroupsDocument) -> Iterator[Mistake]:
    """Yield mistakes in the groups that hosts name. A group that several hosts name needs no entry in groups.yml."""
    counts = Counter(group for own in hosts.values() for group in set(own.file.groups))
    references = [
        (own.source.where("groups", n), group) for own in hosts.values() for n, group in enumerate(own.file.groups)
    ]
    for where, group in references:
        if group not in groups.checked and group != ALL_HOSTS and counts[group] == 1:
            others = sorted({*groups.checked, *(name for name, count in counts.items() if count > 1)} - {ALL_HOSTS})
            near = suggest_name(group, others) if others else ""
            fix = f"{near} To create it, add `{visible.display_name(group)}: {{}}` to hosts/{GROUPS_FILE}.".strip()
            yield f"no group `{visible.display_name(group)}` is defined elsewhere.", where, fix
        yield from _check_group_name(group, where)


def _check_group_members(hosts: Mapping[str, HostDocument], groups: GroupsDocument) -> Iterator[Mistake]:
    for group, file in groups.checked.items():
        yield from _check_group_name(group, groups.source.where(group))
        if group == ALL_HOSTS and file.hosts:
            message = f"`{ALL_HOSTS}` means all hosts: it takes no `hosts`."
            yield message, groups.source.where(group, "hosts"), "Remove it, or name another group."
        for n, name in enumerate(file.hosts):
            if name not in hosts:
                message = f"`{visible.display_name(group)}.hosts`: no host named '{visible.display_name(name)}'."
                yield message, groups.source.where(group, "hosts", n), suggest_name(name, hosts)


def _check_group_name(group: str, where: str) -> Iterator[Mistake]:
    if PATTERN_SIGNS.search(group):
        yield f"no pattern can match the group `{visible.display_name(group)}`: {PATTERN_SIGNS_HINT}.", where, ""


def build_clusters(
    hosts: Mapping[str, HostDocument], groups: GroupsDocument, members: Mapping[str, tuple[str, ...]]
) -> dict[str, Cluster]:
    """Return the clusters by name. members: hosts of each group. Raises Refused with file and line for an invalid one."""
    for rule in (_check_cluster_heads, _check_cluster_sizes, _check_cluster_members):
        for message, where, fix in rule(hosts, groups, members):
            raise Refused(message, where=where, fix=fix)
    return {name: _build_cluster(name, hosts, groups, members[name]) for name in _cluster_names(groups)}


def join_cluster(host: Host, clusters: Iterable[Cluster]) -> Host:
    """Return a host with its cluster and the cluster's recipe; unchanged if it is in none."""
    own_cluster = next((cluster for cluster in clusters if host.name in cluster.members), None)
    if own_cluster is None:
        return host
    return replace(
        host, cluster=own_cluster, recipe=own_cluster.recipe, set_at={**host.set_at, "recipe": own_cluster.where}
    )


def _cluster_names(groups: GroupsDocument) -> list[str]:
    return [name for name, group in groups.checked.items() if group.cluster]


def _build_cluster(
    name: str, documents: Mapping[str, HostDocument], groups: GroupsDocument, hosts: tuple[str, ...]
) -> Cluster:
    settings = groups.checked[name].cluster
    assert settings is not None
    ranks = (settings.head, *(host for host in hosts if host != settings.head))
    where = groups.source.where(name, "cluster", "recipe")
    fabrics = (documents[rank].file.fabric for rank in ranks)
    addresses = tuple(fabric.address if fabric else "" for fabric in fabrics)
    return Cluster(name, settings.recipe, ranks, addresses, settings.port, settings.barrier_port, where)


def _check_cluster_heads(
    hosts: Mapping[str, HostDocument], groups: GroupsDocument, members: Mapping[str, tuple[str, ...]]
) -> Iterator[Mistake]:
    for name in _cluster_names(groups):
        settings, where = groups.checked[name].cluster, groups.source.where(name, "cluster", "head")
        if settings is None or settings.head in members[name]:
            continue
        head, key = visible.display_name(settings.head), visible.display_name(name)
        if settings.head in hosts:
            yield f"`{key}.cluster.head`: {head} is not in the group.", where, f"Add it to `{key}.hosts`."
        yield (
            f"`{key}.cluster.head`: no host named '{head}'.",
            where,
            suggest_name(settings.head, members[name] or hosts),
        )


def _check_cluster_sizes(
    hosts: Mapping[str, HostDocument], groups: GroupsDocument, members: Mapping[str, tuple[str, ...]]
) -> Iterator[Mistake]:
    for name in _cluster_names(groups):
        where, settings = groups.source.where(name, "cluster"), groups.checked[name].cluster
        if name == ALL_HOSTS:
            yield f"`{ALL_HOSTS}` cannot be a cluster.", where, "Make a group of its hosts."
        if len(members[name]) < 2:
            key = visible.display_name(name)
            yield (
                f"the cluster {key} has fewer than two hosts.",
                where,
                f"List its hosts as `{key}.hosts`, or remove `cluster`.",
            )
        if settings is not None and settings.port == settings.barrier_port:
            yield "`port` and `barrier_port` are the same.", where, "Use another port for one of them."


def _check_cluster_members(
    hosts: Mapping[str, HostDocument], groups: GroupsDocument, members: Mapping[str, tuple[str, ...]]
) -> Iterator[Mistake]:
    cluster_by_host: dict[str, str] = {}
    for name in _cluster_names(groups):
        for host in members[name]:
            own = hosts[host]
            if host in cluster_by_host:
                message = (
                    f"{host} is in two clusters, {visible.display_name(cluster_by_host[host])} and "
                    f"{visible.display_name(name)}."
                )
                yield message, groups.source.where(name, "cluster"), f"A host serves one. Edit hosts/{GROUPS_FILE}."
            if own.file.recipe:
                message = (
                    f"{host} is a member of the cluster {visible.display_name(name)}, which serves a recipe of its own."
                )
                yield message, own.source.where("recipe"), "Remove `recipe` here, or the host from the group."
            cluster_by_host[host] = name


GATEWAY_KEYS = tuple(GatewayFile.model_fields)


def build_gateways(groups: GroupsDocument, members: Mapping[str, tuple[str, ...]]) -> dict[str, Gateway]:
    """Return the gateways by group. members: hosts of each group. Raises Refused with file and line for an invalid one."""
    gateways = {
        name: Gateway(
            name, group.gateway.host, members[name], group.gateway, _gateway_locations(groups, name, group.gateway)
        )
        for name, group in groups.checked.items()
        if group.gateway is not None
    }
    for message, where, fix in _find_gateway_mistakes(gateways, members):
        raise Refused(message, where=where, fix=fix)
    return gateways


def refuse_unroutable_wakes(hosts: Iterable[Host], gateways: Mapping[str, Gateway]) -> None:
    """Raise Refused, with file and line, for a server that requests may wake and that no gateway routes to."""
    for host in hosts:
        if host.wake.on_request and not any(host.machine in gateway.members for gateway in gateways.values()):
            message = (
                f"`wake: on_request` of {host.recipe}: no gateway routes to {host.machine}, so nobody can ask for it."
            )
            fix = f"In hosts/{GROUPS_FILE}: a group with {host.machine} and a `gateway`; or remove `wake`."
            raise Refused(message, where=host.set_at["recipe"], fix=fix)


def _gateway_locations(groups: GroupsDocument, name: str, file: GatewayFile) -> dict[str, str]:
    at = (name, "gateway")
    keys = [key for key in GATEWAY_KEYS if key in file.model_fields_set]
    return {"": groups.source.where(*at)} | {key: groups.source.where(*at, key) for key in keys}


def _find_gateway_mistakes(
    gateways: Mapping[str, Gateway], members: Mapping[str, tuple[str, ...]]
) -> Iterator[Mistake]:
    hosts, group_by_host = {host for group in members.values() for host in group}, dict[str, str]()
    for name, gateway in gateways.items():
        label, key = visible.display_name(gateway.host), visible.display_name(name)
        if gateway.host not in hosts:
            yield (
                f"`{key}.gateway.host`: no host named '{label}'.",
                gateway.where("host"),
                suggest_name(gateway.host, gateway.members),
            )
        if gateway.host not in gateway.members:
            message = f"`{key}.gateway.host`: {label} is not in the group."
            yield message, gateway.where("host"), f"Add it to `{key}.hosts`; without a recipe it serves no model."
        if gateway.host in group_by_host:
            message = (
                f"{label} is the gateway of two groups, {visible.display_name(group_by_host[gateway.host])} and {key}."
            )
            yield message, gateway.where("host"), f"A host has one. Edit hosts/{GROUPS_FILE}."
        group_by_host[gateway.host] = name
        for stranger in sorted(gateway.file.addresses.keys() - {*gateway.members}):
            message = f"`{key}.gateway.addresses`: {visible.display_name(stranger)} is not in the group."
            yield message, gateway.where("addresses"), suggest_name(stranger, gateway.members)
