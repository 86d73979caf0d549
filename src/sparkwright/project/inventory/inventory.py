"""The hosts of a project, with the settings of their groups."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sparkwright import visible
from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import check, kind_of
from sparkwright.project.inventory import group_checks, patterns, rules, secret_source, several, variables
from sparkwright.project.inventory.cluster import Cluster, Fabric
from sparkwright.project.inventory.gateway import Gateway
from sparkwright.project.inventory.host import Host
from sparkwright.project.inventory.models import GroupFile, HostFile, Shared
from sparkwright.project.inventory.patterns import EVERYONE, GROUPS_FILE
from sparkwright.project.inventory.rules import Groups, Own
from sparkwright.secret import Secret

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
        clusters = group_checks.cluster_groups_found(read, groups, members)
        several.refuse_members(read, clusters)
        machines = {name: group_checks.member(host, clusters.values()) for name, host in hosts.items()}
        found = [target for name, host in machines.items() for target in several.targets(project, host, read[name])]
        hosts = {host.name: host for host in found}
        machines |= {name: replace(machines[name], recipe=None) for name in read if read[name].file.several}
        floors = {name: group.min_serving for name, group in groups.checked.items() if group.min_serving is not None}
        found_gateways = group_checks.gateways_found(groups, members)
        group_checks.refuse_unasked(found, found_gateways)
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
        key_variable=several.key_variable(recipe) if own.connection != "ssh" else "",
        **inherited,
    )


def _fabric(own: HostFile) -> Fabric | None:
    end = own.fabric
    return Fabric(tuple(end.interfaces), end.address, tuple(end.adapters)) if end else None
