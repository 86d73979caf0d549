"""A host's place in a cluster: the checks of recipe, cluster and host, and the settings of the member."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from sparkwright import program
from sparkwright.engines.parallel import ClusterMember, Share, Split
from sparkwright.errors import Refused
from sparkwright.project.inventory.groups import Cluster
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.recipe import Recipe


def share(recipe: Recipe, host: Host) -> Share:
    """Return the settings that a member of a cluster needs besides the recipe.

    Raises Refused if recipe, cluster and host don't fit together.
    """
    cluster, split, parallel = host.cluster, recipe.split, recipe.engine.parallel
    if cluster is None:
        _refuse_alone(recipe, host)
    refuse_unfit(recipe, cluster)
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
    found = parallel.share(member)
    _refuse_short_stop(recipe, found)
    return found


def refuse_unfit(recipe: Recipe, cluster: Cluster) -> None:
    """Raise Refused if a recipe and a cluster don't fit together, for any member."""
    split, parallel, count = recipe.split, recipe.engine.parallel, len(cluster.members)
    if split is None or parallel is None:
        message = f"the recipe {recipe.name} is for one host, and the cluster {cluster.name} has {count}."
        fix = f"Add `parallel: {{tensor: {count}}}` to the recipe, or choose another."
        raise Refused(message, where=cluster.where, fix=fix)
    bare = next((name for name, text in zip(cluster.members, cluster.addresses, strict=True) if not text), "")
    if bare:
        message = f"{bare} has no `fabric`: the other members of {cluster.name} cannot reach it."
        fix = f"`{program.name()} cluster.inspect --host {cluster.name}` proposes it from the links of the hosts."
        raise Refused(message, where=f"hosts/{bare}.yml", fix=fix)
    for message, where, fix in _mistakes(recipe, cluster, split, cluster.port or parallel.MASTER_PORT):
        raise Refused(message, where=where, fix=fix)


def _refuse_alone(recipe: Recipe, host: Host) -> NoReturn:
    """Raise Refused for a recipe for several hosts on a host that serves alone."""
    where, host_count = host.set_at.get("recipe", host.where), recipe.split.hosts if recipe.split else 0
    message = f"the recipe {recipe.name} is for {host_count} hosts (`parallel`), and {host.name} serves alone."
    way = f"{{hosts: [{host.name}, ...], cluster: {{recipe: {recipe.name}, head: {host.name}}}}}"
    raise Refused(message, where=where, fix=f"Make a cluster of them in hosts/groups.yml: `pair: {way}`.")


def _mistakes(recipe: Recipe, cluster: Cluster, split: Split, port: int) -> Iterator[tuple[str, str, str]]:
    count = len(cluster.members)
    if split.hosts != count:
        message = f"the recipe {recipe.name} is for {split.hosts} hosts (`parallel`), and the cluster {cluster.name} has {count}."
        fix = f"Write `parallel: {{tensor: {count}}}` or `{{pipeline: {count}}}`, or change the group."
        yield message, recipe.source.where("parallel"), fix
    twice = next((address for address in cluster.addresses if cluster.addresses.count(address) > 1), "")
    if twice:
        both = [name for name, text in zip(cluster.members, cluster.addresses, strict=True) if text == twice]
        yield f"{' and '.join(both)} have the same `fabric.address`, {twice}.", f"hosts/{both[1]}.yml", "Correct one."
    if recipe.engine_port in (port, cluster.barrier_port):
        name = "port" if recipe.engine_port == port else "barrier_port"
        message = f"`cluster.{name}`: the server itself listens on {recipe.engine_port}."
        yield message, cluster.where, "Use another port."


def _refuse_short_stop(recipe: Recipe, found: Share) -> None:
    given = recipe.file.container.stop_timeout_s
    if given < found.stop_timeout_s:
        message = f"`container.stop_timeout_s` must be at least {found.stop_timeout_s} with `parallel`, got {given}."
        where = recipe.source.where("container", "stop_timeout_s")
        raise Refused(message, where=where, fix="A worker takes longer to stop than Docker waits for it.")
