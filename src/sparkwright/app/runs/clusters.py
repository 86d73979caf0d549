"""Which runs a cluster's members may take part in: what it serves together, no member changes alone."""

from __future__ import annotations

from sparkwright import program
from sparkwright.app.connect import Chosen
from sparkwright.errors import Refused
from sparkwright.project import playbook, recipe


def refuse(chosen: Chosen, play: playbook.Play) -> None:
    """Raises Refused for a play about the servers of a cluster: this release renders them and does not run them."""
    member = next((host for host in chosen.hosts if host.cluster), None)
    if member is None or member.cluster is None or not play.uses({*recipe.RECIPE_NAMES, *recipe.PINNED_NAMES}):
        return
    cluster, names = member.cluster, {host.name for host in chosen.hosts}
    if missing := set(cluster.members) - names:
        alone = next(name for name in cluster.members if name in names)
        message = f"{alone} is {cluster.place(alone)}, and {', '.join(sorted(missing))} would be left out."
        raise Refused(message, where=cluster.where, fix=f"Use `--host {cluster.name}`.")
    message = (
        f"{cluster.name} is a cluster: this release renders its containers and cannot run `{play.name}` on them yet."
    )
    fix = f"`{program.name()} render --host {cluster.name}` prints scripts that start them by hand."
    raise Refused(message, where=cluster.where, fix=fix)
