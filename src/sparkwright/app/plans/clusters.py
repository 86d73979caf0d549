"""Runs on a cluster: always on all members, with the cluster's playbook, and with a barrier between the runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sparkwright import program
from sparkwright.app.connect import Selection
from sparkwright.errors import Refused
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import hang_up
from sparkwright.project import playbook, recipe, shipped_files
from sparkwright.project.inventory.groups import Cluster
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe import seat
from sparkwright.protocol import cluster as protocol
from sparkwright.protocol.plan import Plan

#: folder of the playbooks for clusters: playbooks/cluster/NAME.yml
FOLDER = "cluster"


def one_of(selection: Selection) -> Cluster | None:
    """Return the cluster that a command selects; None for hosts that serve on their own."""
    return next((host.cluster for host in selection.hosts if host.cluster), None)


def is_one(selection: Selection) -> bool:
    """Return True if the selection is one host, or one cluster with all its members."""
    cluster = one_of(selection)
    names = {host.name for host in selection.hosts}
    return names == set(cluster.members) if cluster else len(names) == 1


def path_of(selection: Selection, book: str) -> Path:
    """Return the path of the playbook for the selected hosts.

    Raises Refused for a part of a cluster, for a cluster combined with other hosts, for a recipe that does not suit the
    cluster, and if there is no such playbook for clusters.
    """
    usual, cluster = selection.project.playbook(book), one_of(selection)
    root = selection.project.root
    if cluster is None or not _about_servers(usual, root):
        return usual
    refuse_part_or_others(selection)
    path = shipped_files.beside(root, usual, f"{FOLDER}/{usual.name}")
    if not path.is_file():
        message = f"{cluster.name} is a cluster, and this release cannot run `{usual.stem}` on one yet."
        fix = f"`{program.name()} deploy --host {cluster.name}` works."
        raise Refused(message, where=cluster.where, fix=fix)
    seat.refuse_unfit(recipe.load(root, cluster.recipe), cluster)  # once, not for each member
    return path


def refuse_parts(selection: Selection) -> None:
    """Raise Refused if some members of a cluster are selected and others are not."""
    for cluster in {host.cluster.name: host.cluster for host in selection.hosts if host.cluster}.values():
        _refuse_part(selection, cluster)


def refuse_part_or_others(selection: Selection) -> None:
    """Raise Refused for a part of a cluster, and for a cluster combined with other hosts."""
    if cluster := one_of(selection):
        _refuse_part(selection, cluster)
        _refuse_others(selection, cluster)


def answering(selection: Selection, command: str) -> Selection:
    """Return the selected hosts that answer requests, without workers. Raises Refused if all are workers."""
    workers = [host for host in selection.hosts if host.cluster and host.name != host.cluster.head]
    if not workers:
        return selection
    if len(workers) == len(selection.hosts) and (cluster := workers[0].cluster):
        message = f"{workers[0].name} is {cluster.place(workers[0].name)}: only the head answers `{command}`."
        raise Refused(message, where=cluster.where, fix=f"Use `--host {cluster.name}`.")
    hosts = [host for host in selection.hosts if host not in workers]
    members = [member for member in selection.fleet.members if member.host in hosts]
    hang_up(member for member in selection.fleet.members if member.host in workers)
    return replace(selection, hosts=hosts, fleet=Fleet(members))


def met(plan: Plan, host: Host) -> Plan:
    """Return a member's plan with the address of the cluster's barrier added."""
    cluster = host.cluster
    if cluster is None:
        return plan
    about = protocol.Cluster(
        name=cluster.name,
        rank=cluster.rank(host.name),
        members=cluster.members,
        address=cluster.addresses[0],
        port=cluster.barrier_port,
    )
    return replace(plan, cluster=about)


def _about_servers(path: Path, project: Path) -> bool:
    names = {*recipe.RECIPE_NAMES, *recipe.PINNED_NAMES}
    return any(play.uses(names) for play in playbook.load(path, project).plays)


def _refuse_part(selection: Selection, cluster: Cluster) -> None:
    names = [host.name for host in selection.hosts]
    if missing := [name for name in cluster.members if name not in names]:
        alone = next(name for name in cluster.members if name in names)
        message = f"{alone} is {cluster.place(alone)}, and {', '.join(missing)} would be left out."
        raise Refused(message, where=cluster.where, fix=f"Use `--host {cluster.name}`.")


def _refuse_others(selection: Selection, cluster: Cluster) -> None:
    names = [host.name for host in selection.hosts]
    if others := [name for name in names if name not in cluster.members]:
        message = f"the cluster {cluster.name} is deployed by itself, not together with {', '.join(others)}."
        raise Refused(message, fix=f"Use `--host {cluster.name}`, then the others.")
