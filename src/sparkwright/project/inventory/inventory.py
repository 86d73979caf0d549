"""The hosts of a project, with the settings of their groups; a host that serves several recipes is a target for each."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkwright import defaults, units, visible
from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import check, kind_of
from sparkwright.project.inventory import patterns, rules, secret_source, variables
from sparkwright.project.inventory.groups import Cluster, Fabric, Gateway
from sparkwright.project.inventory.host import NEVER, Host, Wake
from sparkwright.project.inventory.models import GroupFile, HostFile, ServedFile, Shared
from sparkwright.project.inventory.patterns import EVERYONE, GROUPS_FILE
from sparkwright.project.inventory.rules import Groups, Mistake, Own
from sparkwright.secret import Secret
from sparkwright.trust.names import STEP, why_not_a_file

MERGED = ("env", "secrets", "vars")
INHERITED = ("user", "port", "home", "recipe", "serve_port", "registry_mirror", "model_from")
#: settings whose mistakes are found only together with another file
BLAMED = ("recipe", "model_from", "serve_port")


@dataclass(frozen=True)
class _Layer:
    """The settings that one file, or one group of groups.yml, gives to a host."""

    file: Shared
    source: Document
    #: its place in the document
    at: Place = ()

    def set_at(self) -> dict[str, str]:
        """See `Host.set_at`."""
        found = {key: self.source.where(*self.at, key) for key in BLAMED if getattr(self.file, key) is not None}
        return found | {f"vars.{name}": self.source.where(*self.at, "vars", name) for name in self.file.vars}


@dataclass(frozen=True)
class Inventory:
    """All hosts, groups, clusters and gateways of a project."""

    #: hosts by name; a host that serves several recipes is here once for each, as MACHINE/RECIPE
    hosts: Mapping[str, Host]
    #: names of the hosts by group, `all` among them
    groups: Mapping[str, tuple[str, ...]]
    #: by group, for the groups that set it
    min_serving: Mapping[str, int] = field(default_factory=dict)
    #: clusters by the name of their group
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    #: gateways by the name of their group
    gateways: Mapping[str, Gateway] = field(default_factory=dict)
    #: hosts as their files describe them, by name; without a recipe where they serve several
    machines: Mapping[str, Host] = field(default_factory=dict)

    @classmethod
    def load(cls, project: Path) -> Inventory:
        """Read hosts/ of a project. Raises Refused with file and line."""
        folder = project / "hosts"
        groups = _groups(project, folder / GROUPS_FILE)
        read = {path.stem: _read(path) for path in patterns.files(folder)}
        rules.refuse_names(read, groups)
        if not read:
            raise Refused(f"no hosts in {document.shown(folder)}.", fix="Create hosts/spark1.yml (docs/files/host.md).")
        hosts = {name: _host(project, name, own, groups) for name, own in read.items()}
        for host in hosts.values():
            rules.refuse_source(host, hosts)
        members = patterns.members(hosts, groups.checked)
        clusters = rules.cluster_groups_found(read, groups, members)
        refuse_members(read, clusters)
        machines = {name: rules.member(host, clusters.values()) for name, host in hosts.items()}
        found = [target for name, host in machines.items() for target in targets(project, host, read[name])]
        hosts = {host.name: host for host in found}
        machines |= {name: replace(machines[name], recipe=None) for name in read if read[name].file.several}
        floors = {name: group.min_serving for name, group in groups.checked.items() if group.min_serving is not None}
        found_gateways = rules.gateways_found(groups, members)
        rules.refuse_unasked(found, found_gateways)
        return cls(hosts, patterns.members(hosts, groups.checked), floors, clusters, found_gateways, machines)

    def names(self) -> list[str]:
        """Return the names of all hosts."""
        return list(self.hosts)

    def match(self, pattern: str) -> list[Host]:
        """Return the hosts of an Ansible pattern, in the inventory's order. Raises Refused if there are none."""
        named = {**patterns.implied(self.hosts), **self.groups}
        return [self.hosts[name] for name in patterns.match(pattern, list(self.hosts), named)]

    def machines_of(self, hosts: Iterable[Host]) -> list[Host]:
        """Return the machines of these hosts, each once."""
        return [self.machines[name] for name in dict.fromkeys(host.machine for host in hosts)]

    def servers_of(self, machine: str) -> list[Host]:
        """Return the hosts that stand for the servers of a machine."""
        return [host for host in self.hosts.values() if host.machine == machine]

    def secrets(self, host: Host) -> dict[str, Secret]:
        """Read the host's secrets. One whose environment variable or file does not exist is left out.

        Raises Refused for one that is too short.
        """
        return secret_source.of(host)


def _groups(project: Path, path: Path) -> Groups:
    if not path.exists():
        return Groups({}, Document(path, {}))
    read = document.load(path)
    if not isinstance(read.data, dict | None):
        message = f"groups.yml must be a mapping of groups by name, got {kind_of(read.data)}."
        raise Refused(message, where=read.where(), fix="Write `lab: {hosts: [spark1]}`.")
    groups = {name: data if data is not None else {} for name, data in (read.data or {}).items()}
    for name, data in groups.items():
        if isinstance(data, list):
            message = f"the group `{visible.name(name)}` must be a mapping, got a list."
            raise Refused(message, where=read.where(name), fix="List its members as `hosts: [spark1]` below it.")
    checked = {name: check(GroupFile, read, data, at=(name,)) for name, data in groups.items()}
    for name, group in checked.items():
        rules.refuse(group, read, (name,))
        variables.refuse(group.vars, read, (name,), project)
    return Groups(checked, read)


def _read(path: Path) -> Own:
    source = document.load(path)
    own = check(HostFile, source)
    rules.refuse(own, source)
    return Own(own, source)


def _host(project: Path, name: str, read: Own, groups: Groups) -> Host:
    own = read.file
    variables.refuse(own.vars, read.source, (), project)
    mine = patterns.groups_of(name, own.groups, {group: file.hosts for group, file in groups.checked.items()})
    layers = [
        _Layer(groups.checked[item], groups.source, (item,)) for item in (EVERYONE, *mine) if item in groups.checked
    ]
    layers.append(_Layer(own, read.source))
    inherited = {key: patterns.last(getattr(layer.file, key) for layer in layers) for key in INHERITED}
    merged = {key: dict(ChainMap(*(getattr(layer.file, key) for layer in reversed(layers)))) for key in MERGED}
    recipe = project / "recipes" / f"{inherited['recipe']}.yml"
    return Host(
        name=name,
        address=own.address or name,
        connection=own.connection,
        groups=mine,
        env=merged["env"],
        vars=merged["vars"],
        secret_sources=merged["secrets"],
        fabric=_fabric(own),
        where=document.shown(read.source.path),
        set_at={key: place for layer in layers for key, place in layer.set_at().items()},
        key_variable=key_variable(recipe) if own.connection != "ssh" else "",
        **inherited,
    )


def _fabric(own: HostFile) -> Fabric | None:
    end = own.fabric
    return Fabric(tuple(end.interfaces), end.address, tuple(end.adapters)) if end else None


#: the keys of a host's file that list recipes: served side by side, or taking turns in memory
SERVES, ON_DEMAND = "serves", "on_demand"
WAKE_KEYS = ("wake", "sleep_after", "stay_awake")


@dataclass(frozen=True)
class _Listed:
    """An entry of `serves` or of `on_demand`."""

    file: ServedFile
    key: str
    #: "file:line"
    where: str


def targets(project: Path, host: Host, own: Own) -> list[Host]:
    """Return a target for each recipe that a host serves; the host itself if it has one recipe.

    Raises Refused with file and line.
    """
    if not own.file.several:
        return [host]
    listed = _listed(own)
    for message, where, fix in _mistakes(host, own, listed):
        raise Refused(message, where=where, fix=fix)
    found = [_target(project, host, listing) for listing in listed]
    taken: dict[str, Host] = {}
    for target, listing in zip(found, listed, strict=True):
        if target.server in taken:
            both = f"{taken[target.server].recipe} and {target.recipe}"
            message = f"{both} would both run as the container '{visible.name(target.server)}'."
            raise Refused(message, where=listing.where, fix="Give one recipe another `container.name`.")
        taken[target.server] = target
    turns = tuple(target.server for target, listing in zip(found, listed, strict=True) if listing.key == ON_DEMAND)
    return [replace(item, turns=turns) if item.server in turns else item for item in found]


def refuse_members(owns: Mapping[str, Own], clusters: Mapping[str, Cluster]) -> None:
    """Raise Refused for a member of a cluster that serves other recipes in addition to the cluster's."""
    for cluster in clusters.values():
        for name in cluster.members:
            if owns[name].file.several:
                key = SERVES if owns[name].file.serves is not None else ON_DEMAND
                message = f"{name} is a member of the cluster {cluster.name}, which serves a recipe of its own."
                where = owns[name].source.where(key)
                raise Refused(message, where=where, fix=f"Remove `{key}` here, or the host from the group.")


def _listed(own: Own) -> list[_Listed]:
    lists = ((SERVES, own.file.serves), (ON_DEMAND, own.file.on_demand))
    return [
        _Listed(
            ServedFile.model_validate({"recipe": entry}) if isinstance(entry, str) else entry,
            key,
            own.source.where(key, n),
        )
        for key, entries in lists
        for n, entry in enumerate(entries or ())
    ]


def _mistakes(host: Host, own: Own, listed: Sequence[_Listed]) -> Iterator[Mistake]:
    key = listed[0].key
    if own.file.recipe:
        fix = "List all recipes under `serves`."
        yield f"`recipe` and `{key}` are both set.", own.source.where("recipe"), fix
    if host.serve_port:
        at = host.set_at.get("serve_port", own.source.where(key))
        fix = f"Write the port beside the recipe: `{key}: [{{recipe: NAME, port: 8001}}]`."
        yield "`serve_port` cannot tell which of several servers it is for.", at, fix
    if own.file.on_demand is not None and len(own.file.on_demand) == 1:
        message = "`on_demand` has one recipe: nothing takes turns with it."
        yield message, own.source.where(ON_DEMAND), "Add another one, or list it under `serves`."
    yield from _wake_mistakes(listed)
    names = [listing.file.recipe for listing in listed]
    for n, listing in enumerate(listed):
        shown = visible.name(names[n])
        if why := why_not_a_file(names[n]):
            yield f"the recipe '{shown}' {why}.", listing.where, "Name a file of recipes/."
        if names[n] in names[:n]:
            yield f"the recipe {shown} is listed twice.", listing.where, "List each recipe once."


def _wake_mistakes(listed: Sequence[_Listed]) -> Iterator[Mistake]:
    wakes = any(listing.file.wake for listing in listed if listing.key == ON_DEMAND)
    for listing in listed:
        file, shown = listing.file, visible.name(listing.file.recipe)
        key = next((key for key in WAKE_KEYS if getattr(file, key) is not None), "")
        if key and listing.key != ON_DEMAND:
            message = f"`{key}` of {shown}: it is always on, and takes no turns."
            yield message, listing.where, f"Remove it, or list {shown} under `on_demand`."
        elif file.sleep_after and not file.wake:
            message = f"`sleep_after` of {shown}: no request wakes it, so nothing puts it back."
            yield message, listing.where, "Add `wake: on_request`, or remove `sleep_after`."
        elif file.stay_awake and not wakes:
            message = f"`stay_awake` of {shown}: no request wakes another one in its place."
            yield message, listing.where, "Add `wake: on_request` to one of `on_demand`, or remove `stay_awake`."


def wake_of(file: ServedFile) -> Wake:
    """Return how requests change the turn of a server on demand."""
    sleep_after_s = units.seconds(file.sleep_after) if file.sleep_after else 0.0
    return Wake(file.wake is not None, sleep_after_s, units.seconds(file.stay_awake or defaults.STAY_AWAKE))


def _target(project: Path, host: Host, listing: _Listed) -> Host:
    name = listing.file.recipe
    path = project / "recipes" / f"{name}.yml"
    return replace(
        host,
        name=f"{host.name}/{name}",
        on=host.name,
        recipe=name,
        serve_port=listing.file.port,
        server=_container(path, name),
        wake=wake_of(listing.file) if listing.key == ON_DEMAND else NEVER,
        key_variable=key_variable(path) if host.connection != "ssh" else "",
        set_at={**host.set_at, "recipe": listing.where, "serve_port": listing.where},
    )


def _container(path: Path, recipe: str) -> str:
    """Return the name of a recipe's container. Mistakes in the recipe are found by its own check."""
    found = _part(path, "container").get("name")
    return found if isinstance(found, str) and STEP.fullmatch(found) else recipe


def key_variable(path: Path) -> str:
    """Return the environment variable with the key of a recipe's server; empty for none.

    Mistakes in the recipe are found by its own check.
    """
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
