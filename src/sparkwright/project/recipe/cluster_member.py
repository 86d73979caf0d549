"""A host's place in a cluster: the checks of recipe, cluster and host, and the settings of the member."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from sparkwright import program
from sparkwright.engines.parallel import ClusterMember, MemberSettings, Split
from sparkwright.errors import Refused
from sparkwright.project.inventory.groups import Cluster
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.recipe import Recipe


def member_share(recipe: Recipe, host: Host) -> MemberSettings:
    """Return the settings that a member of a cluster needs besides the recipe.

    Raises Refused if recipe, cluster and host don't fit together.
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
    settings = parallel.share(member)
    _refuse_short_stop(recipe, settings)
    return settings


def refuse_mismatch(recipe: Recipe, cluster: Cluster) -> None:
    """Raise Refused if a recipe and a cluster don't fit together, for any member."""
    split, parallel, count = recipe.split, recipe.engine.parallel, len(cluster.members)
    if split is None or parallel is None:
        message = f"the recipe {recipe.name} is for one host, and the cluster {cluster.name} has {count}."
        fix = f"Add `parallel: {{tensor: {count}}}` to the recipe, or choose another."
        raise Refused(message, where=cluster.where, fix=fix)
    member_without_fabric = next(
        (name for name, text in zip(cluster.members, cluster.addresses, strict=True) if not text), ""
    )
    if member_without_fabric:
        message = f"{member_without_fabric} has no `fabric`: the other members of {cluster.name} cannot reach it."
        fix = f"`{program.name()} cluster.inspect --host {cluster.name}` proposes it from the links of the hosts."
        raise Refused(message, where=f"hosts/{member_without_fabric}.yml", fix=fix)
    for message, where, fix in _find_mistakes(recipe, cluster, split, cluster.port or parallel.MASTER_PORT):
        raise Refused(message, where=where, fix=fix)


def _refuse_single_host(recipe: Recipe, host: Host) -> NoReturn:
    """Raise Refused for a recipe for several hosts on a host that serves alone."""
    where, host_count = host.set_at.get("recipe", host.where), recipe.split.hosts if recipe.split else 0
    message = f"the recipe {recipe.name} is for {host_count} hosts (`parallel`), and {host.name} serves alone."
    example = f"{{hosts: [{host.name}, ...], cluster: {{recipe: {recipe.name}, head: {host.name}}}}}"
    raise Refused(message, where=where, fix=f"Make a cluster of them in hosts/groups.yml: `pair: {example}`.")


def _find_mistakes(recipe: Recipe, cluster: Cluster, split: Split, port: int) -> Iterator[tuple[str, str, str]]:
    count = len(cluster.members)
    if split.hosts != count:
        message = f"the recipe {recipe.name} is for {split.hosts} hosts (`parallel`), and the cluster {cluster.name} has {count}."
        fix = f"Write `parallel: {{tensor: {count}}}` or `{{pipeline: {count}}}`, or change the group."
        yield message, recipe.source.where("parallel"), fix
    duplicate = next((address for address in cluster.addresses if cluster.addresses.count(address) > 1), "")
    if duplicate:
        both = [name for name, text in zip(cluster.members, cluster.addresses, strict=True) if text == duplicate]
        yield (
            f"{' and '.join(both)} have the same `fabric.address`, {duplicate}.",
            f"hosts/{both[1]}.yml",
            "Correct one.",
        )
    if recipe.engine_port in (port, cluster.barrier_port):
        name = "port" if recipe.engine_port == port else "barrier_port"
        message = f"`cluster.{name}`: the server itself listens on {recipe.engine_port}."
        yield message, cluster.where, "Use another port."


def _refuse_short_stop(recipe: Recipe, share: MemberSettings) -> None:
    timeout_s = recipe.file.container.stop_timeout_s
    if timeout_s < share.stop_timeout_s:
        message = (
            f"`container.stop_timeout_s` must be at least {share.stop_timeout_s} with `parallel`, got {timeout_s}."
        )
        where = recipe.source.where("container", "stop_timeout_s")
        raise Refused(message, where=where, fix="A worker takes longer to stop than Docker waits for it.")
