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
from sparkwright.project.documents.validation import describe_type, validate
from sparkwright.project.inventory import patterns, rules, secret_source, variables
from sparkwright.project.inventory.groups import Cluster, Fabric, Gateway
from sparkwright.project.inventory.host import NO_WAKE, Host, Wake
from sparkwright.project.inventory.models import GroupFile, HostFile, ServedFile, Shared
from sparkwright.project.inventory.patterns import ALL_HOSTS, GROUPS_FILE
from sparkwright.project.inventory.rules import GroupsDocument, HostDocument, Mistake
from sparkwright.secret import Secret
from sparkwright.trust.names import PATH_COMPONENT, check_file_name

MERGED_SETTINGS = ("env", "secrets", "vars")
INHERITED_SETTINGS = ("user", "port", "home", "recipe", "serve_port", "registry_mirror", "model_from")
#: settings whose mistakes are found only together with another file
LOCATED_SETTINGS = ("recipe", "model_from", "serve_port")


@dataclass(frozen=True)
class _SettingsLayer:
    """The settings that one file, or one group of groups.yml, gives to a host."""

    file: Shared
    source: Document
    #: its place in the document
    at: Place = ()

    def set_at(self) -> dict[str, str]:
        """See `Host.set_at`."""
        locations = {
            key: self.source.where(*self.at, key) for key in LOCATED_SETTINGS if getattr(self.file, key) is not None
        }
        return locations | {f"vars.{name}": self.source.where(*self.at, "vars", name) for name in self.file.vars}


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
        groups = _load_groups(project, folder / GROUPS_FILE)
        documents = {path.stem: _load_host_file(path) for path in patterns.list_host_files(folder)}
        rules.refuse_names(documents, groups)
        if not documents:
            raise Refused(
                f"no hosts in {document.format_path(folder)}.", fix="Create hosts/spark1.yml (docs/files/host.md)."
            )
        hosts = {name: _build_host(project, name, own, groups) for name, own in documents.items()}
        for host in hosts.values():
            rules.refuse_unknown_source(host, hosts)
        members = patterns.group_members(hosts, groups.checked)
        clusters = rules.build_clusters(documents, groups, members)
        refuse_members(documents, clusters)
        machines = {name: rules.join_cluster(host, clusters.values()) for name, host in hosts.items()}
        servers = [
            target for name, host in machines.items() for target in split_by_recipe(project, host, documents[name])
        ]
        hosts = {host.name: host for host in servers}
        machines |= {name: replace(machines[name], recipe=None) for name in documents if documents[name].file.several}
        min_serving = {
            name: group.min_serving for name, group in groups.checked.items() if group.min_serving is not None
        }
        gateways = rules.build_gateways(groups, members)
        rules.refuse_unroutable_wakes(servers, gateways)
        return cls(hosts, patterns.group_members(hosts, groups.checked), min_serving, clusters, gateways, machines)

    def names(self) -> list[str]:
        """Return the names of all hosts."""
        return list(self.hosts)

    def match(self, pattern: str) -> list[Host]:
        """Return the hosts of an Ansible pattern, in the inventory's order. Raises Refused if there are none."""
        groups = {**patterns.implied_groups(self.hosts), **self.groups}
        return [self.hosts[name] for name in patterns.match_hosts(pattern, list(self.hosts), groups)]

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
        return secret_source.read_secrets(host)


def _load_groups(project: Path, path: Path) -> GroupsDocument:
    if not path.exists():
        return GroupsDocument({}, Document(path, {}))
    groups_document = document.load(path)
    if not isinstance(groups_document.data, dict | None):
        message = f"groups.yml must be a mapping of groups by name, got {describe_type(groups_document.data)}."
        raise Refused(message, where=groups_document.where(), fix="Write `lab: {hosts: [spark1]}`.")
    groups = {name: data if data is not None else {} for name, data in (groups_document.data or {}).items()}
    for name, data in groups.items():
        if isinstance(data, list):
            message = f"the group `{visible.display_name(name)}` must be a mapping, got a list."
            raise Refused(
                message, where=groups_document.where(name), fix="List its members as `hosts: [spark1]` below it."
            )
    checked = {name: validate(GroupFile, groups_document, data, at=(name,)) for name, data in groups.items()}
    for name, group in checked.items():
        rules.refuse_secrets(group, groups_document, (name,))
        variables.check(group.vars, groups_document, (name,), project)
    return GroupsDocument(checked, groups_document)


def _load_host_file(path: Path) -> HostDocument:
    source = document.load(path)
    own = validate(HostFile, source)
    rules.refuse_secrets(own, source)
    return HostDocument(own, source)


def _build_host(project: Path, name: str, host_document: HostDocument, groups: GroupsDocument) -> Host:
    own = host_document.file
    variables.check(own.vars, host_document.source, (), project)
    groups_of_host = patterns.list_groups(
        name, own.groups, {group: file.hosts for group, file in groups.checked.items()}
    )
    layers = [
        _SettingsLayer(groups.checked[item], groups.source, (item,))
        for item in (ALL_HOSTS, *groups_of_host)
        if item in groups.checked
    ]
    layers.append(_SettingsLayer(own, host_document.source))
    inherited = {key: patterns.last_set(getattr(layer.file, key) for layer in layers) for key in INHERITED_SETTINGS}
    merged = {key: dict(ChainMap(*(getattr(layer.file, key) for layer in reversed(layers)))) for key in MERGED_SETTINGS}
    recipe = project / "recipes" / f"{inherited['recipe']}.yml"
    return Host(
        name=name,
        address=own.address or name,
        connection=own.connection,
        groups=groups_of_host,
        env=merged["env"],
        vars=merged["vars"],
        secret_sources=merged["secrets"],
        fabric=_build_fabric(own),
        where=document.format_path(host_document.source.path),
        set_at={key: place for layer in layers for key, place in layer.set_at().items()},
        key_variable=read_key_variable(recipe) if own.connection != "ssh" else "",
        **inherited,
    )


def _build_fabric(own: HostFile) -> Fabric | None:
    fabric = own.fabric
    return Fabric(tuple(fabric.interfaces), fabric.address, tuple(fabric.adapters)) if fabric else None


#: the keys of a host's file that list recipes: served side by side, or taking turns in memory
SERVES_KEY, ON_DEMAND_KEY = "serves", "on_demand"
WAKE_KEYS = ("wake", "sleep_after", "stay_awake")


@dataclass(frozen=True)
class _ListedRecipe:
    """An entry of `serves` or of `on_demand`."""

    file: ServedFile
    key: str
    #: "file:line"
    where: str


def split_by_recipe(project: Path, host: Host, own: HostDocument) -> list[Host]:
    """Return a host for each recipe that a machine serves; the host itself if it has one recipe.

    Raises Refused with file and line.
    """
    if not own.file.several:
        return [host]
    listings = _list_recipes(own)
    for message, where, fix in _find_mistakes(host, own, listings):
        raise Refused(message, where=where, fix=fix)
    servers = [_build_server_host(project, host, listing) for listing in listings]
    by_container: dict[str, Host] = {}
    for target, listing in zip(servers, listings, strict=True):
        if target.server in by_container:
            both = f"{by_container[target.server].recipe} and {target.recipe}"
            message = f"{both} would both run as the container '{visible.display_name(target.server)}'."
            raise Refused(message, where=listing.where, fix="Give one recipe another `container.name`.")
        by_container[target.server] = target
    turns = tuple(
        target.server for target, listing in zip(servers, listings, strict=True) if listing.key == ON_DEMAND_KEY
    )
    return [replace(item, turns=turns) if item.server in turns else item for item in servers]


def refuse_members(owns: Mapping[str, HostDocument], clusters: Mapping[str, Cluster]) -> None:
    """Raise Refused for a member of a cluster that serves other recipes in addition to the cluster's."""
    for cluster in clusters.values():
        for name in cluster.members:
            if owns[name].file.several:
                key = SERVES_KEY if owns[name].file.serves is not None else ON_DEMAND_KEY
                message = f"{name} is a member of the cluster {cluster.name}, which serves a recipe of its own."
                where = owns[name].source.where(key)
                raise Refused(message, where=where, fix=f"Remove `{key}` here, or the host from the group.")


def _list_recipes(own: HostDocument) -> list[_ListedRecipe]:
    lists = ((SERVES_KEY, own.file.serves), (ON_DEMAND_KEY, own.file.on_demand))
    return [
        _ListedRecipe(
            ServedFile.model_validate({"recipe": entry}) if isinstance(entry, str) else entry,
            key,
            own.source.where(key, n),
        )
        for key, entries in lists
        for n, entry in enumerate(entries or ())
    ]


def _find_mistakes(host: Host, own: HostDocument, listings: Sequence[_ListedRecipe]) -> Iterator[Mistake]:
    key = listings[0].key
    if own.file.recipe:
        fix = "List all recipes under `serves`."
        yield f"`recipe` and `{key}` are both set.", own.source.where("recipe"), fix
    if host.serve_port:
        at = host.set_at.get("serve_port", own.source.where(key))
        fix = f"Write the port beside the recipe: `{key}: [{{recipe: NAME, port: 8001}}]`."
        yield "`serve_port` cannot tell which of several servers it is for.", at, fix
    if own.file.on_demand is not None and len(own.file.on_demand) == 1:
        message = "`on_demand` has one recipe: nothing takes turns with it."
        yield message, own.source.where(ON_DEMAND_KEY), "Add another one, or list it under `serves`."
    yield from _find_wake_mistakes(listings)
    names = [listing.file.recipe for listing in listings]
    for n, listing in enumerate(listings):
        label = visible.display_name(names[n])
        if why := check_file_name(names[n]):
            yield f"the recipe '{label}' {why}.", listing.where, "Name a file of recipes/."
        if names[n] in names[:n]:
            yield f"the recipe {label} is listed twice.", listing.where, "List each recipe once."


def _find_wake_mistakes(listings: Sequence[_ListedRecipe]) -> Iterator[Mistake]:
    has_wake = any(listing.file.wake for listing in listings if listing.key == ON_DEMAND_KEY)
    for listing in listings:
        file, label = listing.file, visible.display_name(listing.file.recipe)
        key = next((key for key in WAKE_KEYS if getattr(file, key) is not None), "")
        if key and listing.key != ON_DEMAND_KEY:
            message = f"`{key}` of {label}: it is always on, and takes no turns."
            yield message, listing.where, f"Remove it, or list {label} under `on_demand`."
        elif file.sleep_after and not file.wake:
            message = f"`sleep_after` of {label}: no request wakes it, so nothing puts it back."
            yield message, listing.where, "Add `wake: on_request`, or remove `sleep_after`."
        elif file.stay_awake and not has_wake:
            message = f"`stay_awake` of {label}: no request wakes another one in its place."
            yield message, listing.where, "Add `wake: on_request` to one of `on_demand`, or remove `stay_awake`."


def build_wake(file: ServedFile) -> Wake:
    """Return how requests change the turn of a server on demand."""
    sleep_after_s = units.parse_duration(file.sleep_after) if file.sleep_after else 0.0
    return Wake(file.wake is not None, sleep_after_s, units.parse_duration(file.stay_awake or defaults.MIN_AWAKE_TIME))


def _build_server_host(project: Path, host: Host, listing: _ListedRecipe) -> Host:
    name = listing.file.recipe
    path = project / "recipes" / f"{name}.yml"
    return replace(
        host,
        name=f"{host.name}/{name}",
        on=host.name,
        recipe=name,
        serve_port=listing.file.port,
        server=_read_container_name(path, name),
        wake=build_wake(listing.file) if listing.key == ON_DEMAND_KEY else NO_WAKE,
        key_variable=read_key_variable(path) if host.connection != "ssh" else "",
        set_at={**host.set_at, "recipe": listing.where, "serve_port": listing.where},
    )


def _read_container_name(path: Path, recipe: str) -> str:
    """Return the name of a recipe's container. Mistakes in the recipe are found by its own check."""
    name = _read_section(path, "container").get("name")
    return name if isinstance(name, str) and PATH_COMPONENT.fullmatch(name) else recipe


def read_key_variable(path: Path) -> str:
    """Return the environment variable with the key of a recipe's server; empty for none.

    Mistakes in the recipe are found by its own check.
    """
    try:
        if b"server_key" not in path.read_bytes():
            return ""
    except (OSError, ValueError):
        return ""
    return str(_read_section(path, "server_key").get("env") or "")


def _read_section(path: Path, key: str) -> Mapping[str, Any]:
    try:
        section = document.load(path).data[key]
    except (OSError, ValueError, Refused, AttributeError, KeyError, TypeError):
        return {}
    return section if isinstance(section, Mapping) else {}
