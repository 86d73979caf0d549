"""Determines a host's settings as a member of a cluster, and checks that recipe, cluster and host are compatible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from sparkwright import program
from sparkwright.engines.parallel import ClusterMember, MemberSettings, Split
from sparkwright.errors import Refused
from sparkwright.project.inventory.groups import Cluster
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.rules import Mistake, refuse_first
from sparkwright.project.recipe.recipe import Recipe


def member_settings(recipe: Recipe, host: Host) -> MemberSettings:
    """Return the flags, environment and options that a member of a cluster needs in addition to the recipe.

    Raises Refused if recipe, cluster and host are not compatible.
    """
    cluster, split, parallel = host.cluster, recipe.split, recipe.engine.parallel
    if cluster is None:
        _refuse_single_host(recipe, host)
    refuse_mismatch(recipe, cluster)
    assert split is not None and parallel is not None and host.fabric is not None
    member = ClusterMember(
        rank=cluster.rank(host.name),
        split=split,
        head_address=cluster.addresses[0],
        master_port=cluster.port or parallel.MASTER_PORT,
        address=host.fabric.address,
        interfaces=host.fabric.interfaces,
        adapters=host.fabric.hcas,
        traced=parallel.TRACE not in recipe.file.container.env,
    )
    settings = parallel.member_settings(member)
    timeout_s = recipe.file.container.stop_timeout_s
    if timeout_s < settings.stop_timeout_s:
        message = (
            f"`container.stop_timeout_s` must be at least {settings.stop_timeout_s} with `parallel`, got {timeout_s}."
        )
        where = recipe.source.where("container", "stop_timeout_s")
        raise Refused(message, where=where, fix="Raise it: a worker needs that long to stop.")
    return settings


def refuse_mismatch(recipe: Recipe, cluster: Cluster) -> None:
    """Raise Refused if a recipe and a cluster are not compatible."""
    split, parallel, member_count = recipe.split, recipe.engine.parallel, len(cluster.members)
    if split is None or parallel is None:
        message = f"the recipe {recipe.name} is for one host, but the cluster {cluster.name} has {member_count}."
        fix = f"Add `parallel: {{tensor: {member_count}}}` to the recipe, or choose another."
        raise Refused(message, where=cluster.where, fix=fix)
    for name, address in zip(cluster.members, cluster.addresses, strict=True):
        if not address:
            message = f"{name} has no `fabric`: the other members of {cluster.name} cannot reach it."
            fix = f"`{program.name()} cluster.inspect --host {cluster.name}` proposes one from the hosts' links."
            raise Refused(message, where=f"hosts/{name}.yml", fix=fix)
    refuse_first(_find_mistakes(recipe, cluster, split, cluster.port or parallel.MASTER_PORT))


def _refuse_single_host(recipe: Recipe, host: Host) -> NoReturn:
    """Raise Refused for a recipe with `parallel` on a host without a cluster."""
    where, host_count = host.set_at.get("recipe", host.where), recipe.split.hosts if recipe.split else 0
    message = f"the recipe {recipe.name} is for {host_count} hosts (`parallel`), but {host.name} is not in a cluster."
    example = f"{{hosts: [{host.name}, ...], cluster: {{recipe: {recipe.name}, head: {host.name}}}}}"
    raise Refused(message, where=where, fix=f"Define a cluster in hosts/groups.yml: `pair: {example}`.")


def _find_mistakes(recipe: Recipe, cluster: Cluster, split: Split, master_port: int) -> Iterator[Mistake]:
    member_count = len(cluster.members)
    if split.hosts != member_count:
        message = (
            f"the recipe {recipe.name} is for {split.hosts} hosts (`parallel`), but the cluster {cluster.name} has "
            f"{member_count}."
        )
        fix = f"Set `parallel: {{tensor: {member_count}}}` or `{{pipeline: {member_count}}}`, or change the group."
        yield message, recipe.source.where("parallel"), fix
    duplicate_address = next((address for address in cluster.addresses if cluster.addresses.count(address) > 1), "")
    if duplicate_address:
        names = [
            name
            for name, address in zip(cluster.members, cluster.addresses, strict=True)
            if address == duplicate_address
        ]
        message = f"{' and '.join(names)} have the same `fabric.address`, {duplicate_address}."
        yield message, f"hosts/{names[1]}.yml", "Correct one of them."
    if recipe.engine_port in (master_port, cluster.barrier_port):
        key = "port" if recipe.engine_port == master_port else "barrier_port"
        message = f"`cluster.{key}`: the server itself listens on port {recipe.engine_port}."
        yield message, cluster.where, "Use another port."
