"""Runs on a cluster: always on all members, with the cluster's playbook, and with a barrier between the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sparkwright import program
from sparkwright.app.connect import Selection
from sparkwright.errors import Refused
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import close_links
from sparkwright.project import playbook, recipe, shipped_files
from sparkwright.project.inventory.groups import Cluster
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import cluster_member
from sparkwright.protocol import cluster as protocol
from sparkwright.protocol.plan import Plan

#: folder of the playbooks for clusters: playbooks/cluster/NAME.yml
FOLDER = "cluster"


def find_cluster(selection: Selection) -> Cluster | None:
    """Return the cluster that a command selects; None for hosts that serve on their own."""
    return next((host.cluster for host in selection.hosts if host.cluster), None)


def is_single_target(selection: Selection) -> bool:
    """Return True if the selection is one host, or one cluster with all its members."""
    cluster = find_cluster(selection)
    names = {host.name for host in selection.hosts}
    return names == set(cluster.members) if cluster else len(names) == 1


def playbook_path(selection: Selection, playbook_name: str) -> Path:
    """Return the path of the playbook for the selected hosts.

    Raises Refused for a part of a cluster, for a cluster combined with other hosts, for a recipe that does not suit the
    cluster, and if there is no such playbook for clusters.
    """
    host_path, cluster = selection.project.playbook(playbook_name), find_cluster(selection)
    root = selection.project.root
    if cluster is None or not _concerns_servers(host_path, root):
        return host_path
    refuse_partial_or_mixed(selection)
    path = shipped_files.resolve_relative(root, host_path, f"{FOLDER}/{host_path.name}")
    if not path.is_file():
        message = f"{cluster.name} is a cluster, and this release cannot run `{host_path.stem}` on one yet."
        fix = f"`{program.name()} deploy --host {cluster.name}` works."
        raise Refused(message, where=cluster.where, fix=fix)
    cluster_member.refuse_mismatch(recipe.load(root, cluster.recipe), cluster)  # once, not for each member
    return path


def refuse_partial_clusters(selection: Selection) -> None:
    """Raise Refused if some members of a cluster are selected and others are not."""
    for cluster in {host.cluster.name: host.cluster for host in selection.hosts if host.cluster}.values():
        _refuse_partial(selection, cluster)


def refuse_partial_or_mixed(selection: Selection) -> None:
    """Raise Refused for a part of a cluster, and for a cluster combined with other hosts."""
    if cluster := find_cluster(selection):
        _refuse_partial(selection, cluster)
        _refuse_other_hosts(selection, cluster)


def exclude_workers(selection: Selection, command: str) -> Selection:
    """Return the selected hosts that answer requests, without workers. Raises Refused if all are workers."""
    workers = [host for host in selection.hosts if host.cluster and host.name != host.cluster.head]
    if not workers:
        return selection
    if len(workers) == len(selection.hosts) and (cluster := workers[0].cluster):
        message = f"{workers[0].name} is {cluster.place(workers[0].name)}: only the head answers `{command}`."
        raise Refused(message, where=cluster.where, fix=f"Use `--host {cluster.name}`.")
    hosts = [host for host in selection.hosts if host not in workers]
    members = [member for member in selection.fleet.members if member.host in hosts]
    close_links(member for member in selection.fleet.members if member.host in workers)
    return replace(selection, hosts=hosts, fleet=Fleet(members))


def add_barrier(plan: Plan, host: Host) -> Plan:
    """Return a member's plan with the address of the cluster's barrier added."""
    cluster = host.cluster
    if cluster is None:
        return plan
    membership = protocol.Cluster(
        name=cluster.name,
        rank=cluster.rank(host.name),
        members=cluster.members,
        address=cluster.addresses[0],
        port=cluster.barrier_port,
    )
    return replace(plan, cluster=membership)


def _concerns_servers(path: Path, project: Path) -> bool:
    names = {*recipe.RECIPE_NAMES, *recipe.PINNED_NAMES}
    return any(play.uses(names) for play in playbook.load(path, project).plays)


def _refuse_partial(selection: Selection, cluster: Cluster) -> None:
    names = [host.name for host in selection.hosts]
    if missing := [name for name in cluster.members if name not in names]:
        selected = next(name for name in cluster.members if name in names)
        message = f"{selected} is {cluster.place(selected)}, and {', '.join(missing)} would be left out."
        raise Refused(message, where=cluster.where, fix=f"Use `--host {cluster.name}`.")


def _refuse_other_hosts(selection: Selection, cluster: Cluster) -> None:
    names = [host.name for host in selection.hosts]
    if others := [name for name in names if name not in cluster.members]:
        message = f"the cluster {cluster.name} is deployed by itself, not together with {', '.join(others)}."
        raise Refused(message, fix=f"Use `--host {cluster.name}`, then the others.")
