"""A host that serves several recipes: one target for each, with the machine's address and its own recipe, port and container."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright import visible
from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.inventory.cluster import Cluster
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.models import ServedFile
from sparkwright.project.inventory.naming import Mistake, Own
from sparkwright.trust.names import STEP, why_not_a_file


def targets(project: Path, host: Host, own: Own) -> list[Host]:
    """One for each recipe that a host serves; the host itself where it has one. Raises Refused with file and line."""
    if own.file.serves is None:
        return [host]
    for message, where, fix in _mistakes(host, own):
        raise Refused(message, where=where, fix=fix)
    found = [_target(project, host, own, n, one) for n, one in enumerate(_listed(own))]
    taken: dict[str, Host] = {}
    for n, one in enumerate(found):
        if one.server in taken:
            message = f"{taken[one.server].recipe} and {one.recipe} would both run as the container '{visible.name(one.server)}'."
            fix = "Give one recipe another `container.name`."
            raise Refused(message, where=own.source.where("serves", n), fix=fix)
        taken[one.server] = one
    return found


def refuse_members(owns: Mapping[str, Own], clusters: Mapping[str, Cluster]) -> None:
    """Raises Refused for a member of a cluster that serves something else beside it."""
    for cluster in clusters.values():
        for name in cluster.members:
            if owns[name].file.serves is not None:
                message = f"{name} is a member of the cluster {cluster.name}, which serves a recipe of its own."
                where = owns[name].source.where("serves")
                raise Refused(message, where=where, fix="Remove `serves` here, or the host from the group.")


def _listed(own: Own) -> list[ServedFile]:
    return [
        ServedFile.model_validate({"recipe": one}) if isinstance(one, str) else one for one in own.file.serves or ()
    ]


def _mistakes(host: Host, own: Own) -> Iterator[Mistake]:
    where = own.source.where("serves")
    if own.file.recipe:
        yield "`recipe` and `serves` are both set.", own.source.where("recipe"), "List all recipes under `serves`."
    if host.serve_port:
        at = host.set_at.get("serve_port", where)
        fix = "Write the port beside the recipe: `serves: [{recipe: NAME, port: 8001}]`."
        yield "`serve_port` cannot tell which of several servers it is for.", at, fix
    names = [one.recipe for one in _listed(own)]
    for n, name in enumerate(names):
        if why := why_not_a_file(name):
            yield f"the recipe '{visible.name(name)}' {why}.", own.source.where("serves", n), "Name a file of recipes/."
        if name in names[:n]:
            message = f"the recipe {visible.name(name)} is listed twice."
            yield message, own.source.where("serves", n), "List each recipe once."


def _target(project: Path, host: Host, own: Own, n: int, one: ServedFile) -> Host:
    at = own.source.where("serves", n)
    path = project / "recipes" / f"{one.recipe}.yml"
    return replace(
        host,
        name=f"{host.name}/{one.recipe}",
        on=host.name,
        recipe=one.recipe,
        serve_port=one.port,
        server=_container(path, one.recipe),
        key_variable=key_variable(path) if host.connection != "ssh" else "",
        set_at={**host.set_at, "recipe": at, "serve_port": at},
    )


def _container(path: Path, recipe: str) -> str:
    """The name of a recipe's container. What is wrong in the recipe its check will say."""
    found = _part(path, "container").get("name")
    return found if isinstance(found, str) and STEP.fullmatch(found) else recipe


def key_variable(path: Path) -> str:
    """The environment variable with the key of a recipe's server; empty for none. What is wrong in it its check will say."""
    try:
        if b"server_key" not in path.read_bytes():
            return ""
    except (OSError, ValueError):
        return ""
    return str(_part(path, "server_key").get("env") or "")


def _part(path: Path, key: str) -> Mapping[str, Any]:
    try:
        found = document.load(path).data[key]
    except (OSError, ValueError, Refused, AttributeError, KeyError, TypeError):
        return {}
    return found if isinstance(found, Mapping) else {}
