"""Checks the inventory's files: names, secrets in plain text, clusters and gateways."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from sparkwright import visible
from sparkwright.engines import engine
from sparkwright.errors import Refused
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import format_place, suggest_name
from sparkwright.project.inventory.groups import Cluster, Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.models import ClusterFile, GatewayFile, GroupFile, HostFile, Shared
from sparkwright.project.inventory.patterns import ALL_HOSTS, GROUPS_FILE
from sparkwright.trust.secret_names import PROXY_VARIABLES, find_plain_secrets, url_password

URL_PASSWORD_FIX = "Remove user and password from the URL."
#: finds names that no pattern can match: with a character that patterns use, a space at an end, or nothing at all
UNMATCHABLE_NAME_PATTERN = re.compile(r"[,:!&*?\[\]]|^\s|\s$|^$")
PATTERN_CHARACTERS_HINT = "`, : ! & * ? [ ]` have a special meaning in patterns"


def refuse_secrets(file: Shared, source: Document, section: Place = ()) -> None:
    """Raise Refused for the first secret in plain text, or for a server's key under `secrets`.

    section: place of the group in groups.yml; empty for a host's file.
    """
    if file.secrets:
        for engine_name in engine.TITLES:
            key = engine.get_engine(engine_name).key
            if key is not None and key.variable in file.secrets:
                message = f"`secrets.{key.variable}`: a server key belongs in the recipe."
                fix = "Name its source in the recipe: `server_key: {env: SPARK_KEY}`. The checks then use it."
                raise Refused(message, where=source.where(*section, "secrets", key.variable), fix=fix)
    values = {"env": file.env, "vars": file.vars}
    for place in find_plain_secrets(values):
        value: Any = values
        for step in place:
            value = value[step]
        fix = URL_PASSWORD_FIX if url_password(value) and place[-1] not in PROXY_VARIABLES else ""
        raise secret_error(place, source, section, fix=fix)


def secret_error(place: Place, source: Document, section: Place = (), *, fix: str = "") -> Refused:
    """Return the error for a secret in plain text.

    Args:
        place: place of the secret below `section`.
        fix: what to do instead; by default, to name the source under the host's `secrets:`.
    """
    name = next(key for key in reversed(place) if isinstance(key, str))
    fix = fix or (
        f"Name its source under the host's `secrets:`, as {name}: {{env: {name}}}; "
        "it is then sent to the host over standard input only."
    )
    message = f"{format_place(place)} looks like a secret, readable by everyone."
    return Refused(message, where=source.where(*section, *place), fix=fix)


@dataclass(frozen=True)
class HostDocument:
    """A host's file, as validated settings and as YAML with line numbers."""

    file: HostFile
    source: Document


@dataclass(frozen=True)
class GroupsDocument:
    """The content of groups.yml."""

    by_name: Mapping[str, GroupFile]
    source: Document


#: message, "file:line" and fix
Mistake = tuple[str, str, str]


def refuse_first(*checks: Iterable[Mistake]) -> None:
    """Raise Refused for the first mistake of the first check that has one."""
    for message, where, fix in chain(*checks):
        raise Refused(message, where=where, fix=fix)


def refuse_names(hosts: Mapping[str, HostDocument], groups: GroupsDocument) -> None:
    """Raise Refused for the first host or group name that is ambiguous or unknown, or that no pattern can match."""
    refuse_first(*(check(hosts, groups) for check in (_check_host_names, _check_host_groups, _check_group_members)))


def refuse_unknown_source(host: Host, hosts: Mapping[str, Host]) -> None:
    """Raise Refused if a host's `model_from` names no host of the inventory."""
    if host.model_from and host.model_from not in hosts:
        message = f"`model_from`: no host named '{visible.display_name(host.model_from)}'."
        raise Refused(message, where=host.set_at["model_from"], fix=suggest_name(host.model_from, hosts))


def _check_host_names(hosts: Mapping[str, HostDocument], groups: GroupsDocument) -> Iterator[Mistake]:
    group_locations = {group: where for where, group in _list_group_references(hosts)}
    group_locations |= {group: groups.source.where(group) for group in groups.by_name}
    for name, document in hosts.items():
        where = document.source.where()
        if name == ALL_HOSTS:
            yield f"a host cannot be named `{ALL_HOSTS}`: that means all hosts.", where, "Rename the file."
        if name in group_locations:
            message = f"the host has the same name as a group ({group_locations[name]})."
            yield message, where, "Rename one of them: `--host` is ambiguous."
        if UNMATCHABLE_NAME_PATTERN.search(name):
            message = f"no pattern can match this host: {PATTERN_CHARACTERS_HINT}."
            yield message, where, "Rename the file; ssh connects to `address:`."
    yield from _check_sandboxes(hosts)


def _check_sandboxes(hosts: Mapping[str, HostDocument]) -> Iterator[Mistake]:
    sandboxes = [name for name, document in hosts.items() if document.file.connection == "sandbox"]
    if len(sandboxes) < 2:
        return
    from sparkwright.sandbox.control import link_number

    first, *others = [name for name in sandboxes if not link_number(name)] or [""]
    for name in others:
        labels = [visible.display_name(label) for label in (first, name)]
        message = f"the sandboxes {' and '.join(labels)} would be the same simulated Spark."
        fix = f"Rename one so that it ends in a number, such as {labels[1]}2."
        yield message, hosts[name].source.where("connection"), fix


def _check_host_groups(hosts: Mapping[str, HostDocument], groups: GroupsDocument) -> Iterator[Mistake]:
    """Yield mistakes in the hosts' `groups`. A group that several hosts list needs no entry in groups.yml."""
    counts = Counter(group for document in hosts.values() for group in set(document.file.groups))
    for where, group in _list_group_references(hosts):
        if group not in groups.by_name and group != ALL_HOSTS and counts[group] == 1:
            others = sorted({*groups.by_name, *(name for name, count in counts.items() if count > 1)} - {ALL_HOSTS})
            suggestion = suggest_name(group, others)
            fix = f"{suggestion} To create it, add `{visible.display_name(group)}: {{}}` to hosts/{GROUPS_FILE}."
            yield f"the group `{visible.display_name(group)}` appears nowhere else.", where, fix.strip()
        yield from _check_group_name(group, where)


def _list_group_references(hosts: Mapping[str, HostDocument]) -> list[tuple[str, str]]:
    """Return "file:line" and group of each entry in the hosts' `groups`."""
    return [
        (document.source.where("groups", n), group)
        for document in hosts.values()
        for n, group in enumerate(document.file.groups)
    ]


def _check_group_members(hosts: Mapping[str, HostDocument], groups: GroupsDocument) -> Iterator[Mistake]:
    for group, file in groups.by_name.items():
        yield from _check_group_name(group, groups.source.where(group))
        if group == ALL_HOSTS and file.hosts:
            message = f"`{ALL_HOSTS}` means all hosts: `hosts` is not allowed here."
            yield message, groups.source.where(group, "hosts"), "Remove `hosts`, or rename the group."
        for n, name in enumerate(file.hosts):
            if name not in hosts:
                message = f"`{visible.display_name(group)}.hosts`: no host named '{visible.display_name(name)}'."
                yield message, groups.source.where(group, "hosts", n), suggest_name(name, hosts)


def _check_group_name(group: str, where: str) -> Iterator[Mistake]:
    if UNMATCHABLE_NAME_PATTERN.search(group):
        yield f"no pattern can match the group `{visible.display_name(group)}`: {PATTERN_CHARACTERS_HINT}.", where, ""


def build_clusters(
    hosts: Mapping[str, HostDocument], groups: GroupsDocument, members: Mapping[str, tuple[str, ...]]
) -> dict[str, Cluster]:
    """Return the clusters by name. members: hosts by group. Raises Refused if a cluster is invalid."""
    checks = (_check_cluster_heads, _check_cluster_sizes, _check_cluster_members)
    refuse_first(*(check(hosts, groups, members) for check in checks))
    return {
        name: _build_cluster(name, settings, hosts, groups, members[name])
        for name, settings in _cluster_settings(groups).items()
    }


def join_cluster(host: Host, clusters: Iterable[Cluster]) -> Host:
    """Return a host with its cluster and the cluster's recipe; unchanged if it belongs to no cluster."""
    for cluster in clusters:
        if host.name in cluster.members:
            return replace(
                host, cluster=cluster, recipe=cluster.recipe, set_at={**host.set_at, "recipe": cluster.where}
            )
    return host


def _cluster_settings(groups: GroupsDocument) -> dict[str, ClusterFile]:
    return {name: group.cluster for name, group in groups.by_name.items() if group.cluster}


def _build_cluster(
    name: str,
    settings: ClusterFile,
    documents: Mapping[str, HostDocument],
    groups: GroupsDocument,
    hosts: tuple[str, ...],
) -> Cluster:
    ranked_hosts = (settings.head, *(host for host in hosts if host != settings.head))
    where = groups.source.where(name, "cluster", "recipe")
    fabrics = (documents[rank].file.fabric for rank in ranked_hosts)
    addresses = tuple(fabric.address if fabric else "" for fabric in fabrics)
    return Cluster(name, settings.recipe, ranked_hosts, addresses, settings.port, settings.barrier_port, where)


def _check_cluster_heads(
    hosts: Mapping[str, HostDocument], groups: GroupsDocument, members: Mapping[str, tuple[str, ...]]
) -> Iterator[Mistake]:
    for name, settings in _cluster_settings(groups).items():
        if settings.head in members[name]:
            continue
        where = groups.source.where(name, "cluster", "head")
        head, key = visible.display_name(settings.head), visible.display_name(name)
        if settings.head in hosts:
            yield f"`{key}.cluster.head`: {head} is not in the group.", where, f"Add it to `{key}.hosts`."
        message = f"`{key}.cluster.head`: no host named '{head}'."
        yield message, where, suggest_name(settings.head, members[name] or hosts)


def _check_cluster_sizes(
    hosts: Mapping[str, HostDocument], groups: GroupsDocument, members: Mapping[str, tuple[str, ...]]
) -> Iterator[Mistake]:
    for name, settings in _cluster_settings(groups).items():
        where = groups.source.where(name, "cluster")
        if name == ALL_HOSTS:
            yield f"`{ALL_HOSTS}` cannot be a cluster.", where, "Make a group of its hosts."
        if len(members[name]) < 2:
            key = visible.display_name(name)
            message = f"the cluster {key} has fewer than two hosts."
            yield message, where, f"List its hosts as `{key}.hosts`, or remove `cluster`."
        if settings.port == settings.barrier_port:
            yield "`port` and `barrier_port` are the same.", where, "Use another port for one of them."


def _check_cluster_members(
    hosts: Mapping[str, HostDocument], groups: GroupsDocument, members: Mapping[str, tuple[str, ...]]
) -> Iterator[Mistake]:
    cluster_by_host: dict[str, str] = {}
    for name in _cluster_settings(groups):
        for host in members[name]:
            if host in cluster_by_host:
                first, second = visible.display_name(cluster_by_host[host]), visible.display_name(name)
                message = f"{host} is in two clusters, {first} and {second}."
                fix = f"Remove it from one of them in hosts/{GROUPS_FILE}."
                yield message, groups.source.where(name, "cluster"), fix
            if hosts[host].file.recipe:
                where = hosts[host].source.where("recipe")
                yield cluster_member_mistake(host, name, "recipe", where)
            cluster_by_host[host] = name


def cluster_member_mistake(host: str, cluster: str, key: str, where: str) -> Mistake:
    """Return the mistake of a cluster member whose own file names recipes. key: `recipe`, `serves` or `on_demand`."""
    message = f"{host} is a member of the cluster {visible.display_name(cluster)}, which has its own recipe."
    return message, where, f"Remove `{key}` here, or the host from the group."


def build_gateways(groups: GroupsDocument, members: Mapping[str, tuple[str, ...]]) -> dict[str, Gateway]:
    """Return the gateways by group. members: hosts by group. Raises Refused if a gateway is invalid."""
    gateways = {
        name: Gateway(
            name, group.gateway.host, members[name], group.gateway, _gateway_locations(groups, name, group.gateway)
        )
        for name, group in groups.by_name.items()
        if group.gateway is not None
    }
    refuse_first(_check_gateways(gateways, members))
    return gateways


def refuse_unroutable_wakes(hosts: Iterable[Host], gateways: Mapping[str, Gateway]) -> None:
    """Raise Refused for a server with `wake: on_request` that no gateway routes to."""
    for host in hosts:
        if host.wake.on_request and not any(host.machine in gateway.members for gateway in gateways.values()):
            message = f"`wake: on_request` of {host.recipe}: no gateway routes requests to {host.machine}."
            fix = f"Give a group with {host.machine} a `gateway` in hosts/{GROUPS_FILE}, or remove `wake`."
            raise Refused(message, where=host.set_at["recipe"], fix=fix)


def _gateway_locations(groups: GroupsDocument, name: str, file: GatewayFile) -> dict[str, str]:
    section = (name, "gateway")
    keys = [key for key in GatewayFile.model_fields if key in file.model_fields_set]
    return {"": groups.source.where(*section)} | {key: groups.source.where(*section, key) for key in keys}


def _check_gateways(gateways: Mapping[str, Gateway], members: Mapping[str, tuple[str, ...]]) -> Iterator[Mistake]:
    hosts = {host for group in members.values() for host in group}
    group_by_host: dict[str, str] = {}
    for name, gateway in gateways.items():
        label, key = visible.display_name(gateway.host), visible.display_name(name)
        if gateway.host not in hosts:
            message = f"`{key}.gateway.host`: no host named '{label}'."
            yield message, gateway.where("host"), suggest_name(gateway.host, gateway.members)
        if gateway.host not in gateway.members:
            message = f"`{key}.gateway.host`: {label} is not in the group."
            yield message, gateway.where("host"), f"Add it to `{key}.hosts`; it needs no recipe."
        if gateway.host in group_by_host:
            message = (
                f"{label} is the gateway of two groups, {visible.display_name(group_by_host[gateway.host])} and {key}."
            )
            yield message, gateway.where("host"), f"Move one to another host in hosts/{GROUPS_FILE}."
        group_by_host[gateway.host] = name
        for other in sorted(gateway.file.addresses.keys() - {*gateway.members}):
            message = f"`{key}.gateway.addresses`: {visible.display_name(other)} is not in the group."
            yield message, gateway.where("addresses"), suggest_name(other, gateway.members)
