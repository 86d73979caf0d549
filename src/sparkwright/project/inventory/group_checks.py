"""The clusters and gateways of groups.yml, and the checks that need only the inventory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from sparkwright import visible
from sparkwright.errors import Refused
from sparkwright.project.documents.validation import nearest
from sparkwright.project.inventory.cluster import Cluster
from sparkwright.project.inventory.gateway import Gateway
from sparkwright.project.inventory.gateway_models import GatewayFile
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.patterns import EVERYONE, GROUPS_FILE
from sparkwright.project.inventory.rules import Groups, Mistake, Own


def cluster_groups_found(
    hosts: Mapping[str, Own], groups: Groups, members: Mapping[str, tuple[str, ...]]
) -> dict[str, Cluster]:
    """Return the clusters by name. members: hosts of each group. Raises Refused with file and line for an invalid one."""
    for rule in (_heads, _sizes, _members):
        for message, where, fix in rule(hosts, groups, members):
            raise Refused(message, where=where, fix=fix)
    return {name: _cluster(name, hosts, groups, members[name]) for name in _names(groups)}


def member(host: Host, clusters: Iterable[Cluster]) -> Host:
    """Return a host with its cluster and the cluster's recipe; unchanged if it is in none."""
    mine = next((cluster for cluster in clusters if host.name in cluster.members), None)
    if mine is None:
        return host
    return replace(host, cluster=mine, recipe=mine.recipe, set_at={**host.set_at, "recipe": mine.where})


def _names(groups: Groups) -> list[str]:
    return [name for name, group in groups.checked.items() if group.cluster]


def _cluster(name: str, owns: Mapping[str, Own], groups: Groups, hosts: tuple[str, ...]) -> Cluster:
    about = groups.checked[name].cluster
    assert about is not None
    ranks = (about.head, *(host for host in hosts if host != about.head))
    where = groups.source.where(name, "cluster", "recipe")
    fabrics = (owns[rank].file.fabric for rank in ranks)
    addresses = tuple(fabric.address if fabric else "" for fabric in fabrics)
    return Cluster(name, about.recipe, ranks, addresses, about.port, about.barrier_port, where)


def _heads(hosts: Mapping[str, Own], groups: Groups, members: Mapping[str, tuple[str, ...]]) -> Iterator[Mistake]:
    for name in _names(groups):
        about, where = groups.checked[name].cluster, groups.source.where(name, "cluster", "head")
        if about is None or about.head in members[name]:
            continue
        head, key = visible.name(about.head), visible.name(name)
        if about.head in hosts:
            yield f"`{key}.cluster.head`: {head} is not in the group.", where, f"Add it to `{key}.hosts`."
        yield f"`{key}.cluster.head`: no host named '{head}'.", where, nearest(about.head, members[name] or hosts)


def _sizes(hosts: Mapping[str, Own], groups: Groups, members: Mapping[str, tuple[str, ...]]) -> Iterator[Mistake]:
    for name in _names(groups):
        where, about = groups.source.where(name, "cluster"), groups.checked[name].cluster
        if name == EVERYONE:
            yield f"`{EVERYONE}` cannot be a cluster.", where, "Make a group of its hosts."
        if len(members[name]) < 2:
            key = visible.name(name)
            yield f"the cluster {key} has one host.", where, f"List its hosts as `{key}.hosts`, or remove `cluster`."
        if about is not None and about.port == about.barrier_port:
            yield "`port` and `barrier_port` are the same.", where, "Use another port for one of them."


def _members(hosts: Mapping[str, Own], groups: Groups, members: Mapping[str, tuple[str, ...]]) -> Iterator[Mistake]:
    taken: dict[str, str] = {}
    for name in _names(groups):
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
        name: Gateway(name, group.gateway.host, members[name], group.gateway, _places(groups, name, group.gateway))
        for name, group in groups.checked.items()
        if group.gateway is not None
    }
    for message, where, fix in _mistakes(gateways, members):
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


def _places(groups: Groups, name: str, file: GatewayFile) -> dict[str, str]:
    at = (name, "gateway")
    written = [key for key in KEYS if key in file.model_fields_set]
    return {"": groups.source.where(*at)} | {key: groups.source.where(*at, key) for key in written}


def _mistakes(gateways: Mapping[str, Gateway], members: Mapping[str, tuple[str, ...]]) -> Iterator[Mistake]:
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
