"""Run playbooks on a cluster: always on all members, with the playbook's version for clusters, synchronized by a barrier."""

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
CLUSTER_FOLDER = "cluster"


def find_cluster(selection: Selection) -> Cluster | None:
    """Return the cluster of the first selected host that is in one, or None."""
    return next((host.cluster for host in selection.hosts if host.cluster), None)


def is_single_target(selection: Selection) -> bool:
    """Return True if the selection is one host, or one cluster with all its members."""
    cluster = find_cluster(selection)
    names = {host.name for host in selection.hosts}
    return names == set(cluster.members) if cluster else len(names) == 1


def playbook_path(selection: Selection, playbook_name: str) -> Path:
    """Return the path of the playbook for the selected hosts. A cluster uses the playbook's version for clusters.

    Raises:
        Refused: the selection is part of a cluster or includes other hosts, the recipe does not match the cluster, or the
            playbook has no version for clusters.
    """
    host_path, cluster = selection.project.playbook(playbook_name), find_cluster(selection)
    root = selection.project.root
    if cluster is None or not _concerns_servers(host_path, root):
        return host_path
    refuse_partial_or_mixed(selection)
    path = shipped_files.resolve_relative(root, host_path, f"{CLUSTER_FOLDER}/{host_path.name}")
    if not path.is_file():
        message = f"{cluster.name} is a cluster, and `{host_path.stem}` does not support clusters yet."
        fix = f"`{program.name()} deploy --host {cluster.name}` works."
        raise Refused(message, where=cluster.where, fix=fix)
    cluster_member.refuse_mismatch(recipe.load(root, cluster.recipe), cluster)
    return path


def refuse_partial_clusters(selection: Selection) -> None:
    """Raise Refused if some members of a cluster are selected and others are not."""
    for cluster in {host.cluster.name: host.cluster for host in selection.hosts if host.cluster}.values():
        _refuse_partial(selection, cluster)


def refuse_partial_or_mixed(selection: Selection) -> None:
    """Raise Refused if the selection is part of a cluster, or a cluster with other hosts."""
    if cluster := find_cluster(selection):
        _refuse_partial(selection, cluster)
        if others := [host.name for host in selection.hosts if host.name not in cluster.members]:
            message = f"the cluster {cluster.name} can't be combined with other hosts: {', '.join(others)}."
            raise Refused(message, fix=f"Use `--host {cluster.name}`, then the others.")


def exclude_workers(selection: Selection, command: str) -> Selection:
    """Return the selection without workers of clusters, which have no API. Raises Refused if all hosts are workers."""
    workers = [host for host in selection.hosts if host.is_worker]
    if not workers:
        return selection
    if len(workers) == len(selection.hosts) and (cluster := workers[0].cluster):
        message = f"{workers[0].name} is {cluster.describe_rank(workers[0].name)}: only the head answers `{command}`."
        raise Refused(message, where=cluster.where, fix=f"Use `--host {cluster.name}`.")
    hosts = [host for host in selection.hosts if host not in workers]
    members = [member for member in selection.fleet.members if member.host in hosts]
    close_links(member for member in selection.fleet.members if member.host in workers)
    return replace(selection, hosts=hosts, fleet=Fleet(members))


def add_barrier(plan: Plan, host: Host) -> Plan:
    """Return a cluster member's plan with the cluster and its barrier's address added. Other plans are unchanged."""
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
    if missing_names := [name for name in cluster.members if name not in names]:
        selected_name = next(name for name in cluster.members if name in names)
        message = f"{selected_name} is {cluster.describe_rank(selected_name)}, and {', '.join(missing_names)} would be left out."
        raise Refused(message, where=cluster.where, fix=f"Use `--host {cluster.name}`.")
