"""A host's place in a cluster: whether recipe, cluster and host fit together, and what the member is started with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from sparkwright.engines.parallel import Seat, Share, Split
from sparkwright.errors import Refused
from sparkwright.project.inventory.cluster import Cluster, Fabric
from sparkwright.project.inventory.host import Host
from sparkwright.project.recipe.recipe import Recipe


def share(recipe: Recipe, host: Host) -> Share:
    """What a member is started with beside its recipe.

    Raises Refused where recipe, cluster and host don't fit together.
    """
    cluster, split, parallel = host.cluster, recipe.split, recipe.engine.parallel
    if cluster is None or split is None or parallel is None:
        _refuse_alone(recipe, host)
    fabric = _fabric(cluster, host)
    port = cluster.port or parallel.MASTER_PORT
    for message, where, fix in _mistakes(recipe, cluster, split, port):
        raise Refused(message, where=where, fix=fix)
    seat = Seat(
        rank=cluster.rank(host.name),
        split=split,
        head_address=cluster.addresses[0],
        master_port=port,
        address=fabric.address,
        interfaces=fabric.interfaces,
        adapters=fabric.hcas,
        traced=parallel.TRACE not in recipe.file.container.env,
    )
    found = parallel.share(seat)
    _refuse_short_stop(recipe, found)
    return found


def _refuse_alone(recipe: Recipe, host: Host) -> NoReturn:
    """A recipe for several hosts on a host that serves alone, or the reverse."""
    where = host.set_at.get("recipe", host.where)
    if host.cluster is None and recipe.split is not None:
        message = (
            f"the recipe {recipe.name} is for {recipe.split.hosts} hosts (`parallel`), and {host.name} serves alone."
        )
        way = f"{{hosts: [{host.name}, ...], cluster: {{recipe: {recipe.name}, head: {host.name}}}}}"
        raise Refused(message, where=where, fix=f"Make a cluster of them in hosts/groups.yml: `pair: {way}`.")
    members = len(host.cluster.members) if host.cluster else 0
    message = (
        f"the recipe {recipe.name} is for one host, and the cluster {host.cluster and host.cluster.name} has {members}."
    )
    raise Refused(message, where=where, fix=f"Add `parallel: {{tensor: {members}}}` to the recipe, or choose another.")


def _fabric(cluster: Cluster, host: Host) -> Fabric:
    missing = [name for name, address in zip(cluster.members, cluster.addresses, strict=True) if not address]
    if host.fabric is None or missing:
        name = missing[0] if missing else host.name
        message = f"{name} has no `fabric`: the other members of {cluster.name} cannot reach it."
        fix = "Write its end of the link, as `fabric: {interfaces: [enp1s0f1np1, enP2p1s0f1np1], address: 192.168.100.10}`."
        raise Refused(message, where=f"hosts/{name}.yml", fix=fix)
    return host.fabric


def _mistakes(recipe: Recipe, cluster: Cluster, split: Split, port: int) -> Iterator[tuple[str, str, str]]:
    count = len(cluster.members)
    if split.hosts != count:
        message = f"the recipe {recipe.name} is for {split.hosts} hosts (`parallel`), and the cluster {cluster.name} has {count}."
        fix = f"Write `parallel: {{tensor: {count}}}` or `{{pipeline: {count}}}`, or change the group."
        yield message, recipe.source.where("parallel"), fix
    twice = next((one for one in cluster.addresses if cluster.addresses.count(one) > 1), "")
    if twice:
        both = [name for name, one in zip(cluster.members, cluster.addresses, strict=True) if one == twice]
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
