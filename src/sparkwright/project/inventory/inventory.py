"""The hosts of a project, with the settings of their groups. A machine with several recipes has one host per recipe."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sparkwright import defaults, units, visible
from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import collect_refusals, describe_type, validate
from sparkwright.project.inventory import patterns, rules, variables
from sparkwright.project.inventory.groups import Cluster, Fabric, Gateway
from sparkwright.project.inventory.host import NO_WAKE, Host, Wake
from sparkwright.project.inventory.models import GroupFile, HostFile, ServedFile, Shared
from sparkwright.project.inventory.patterns import ALL_HOSTS, GROUPS_FILE
from sparkwright.project.inventory.rules import GroupsDocument, HostDocument, Mistake
from sparkwright.trust.names import PATH_COMPONENT, check_file_name

MERGED_SETTINGS = ("env", "secrets", "vars")
INHERITED_SETTINGS = ("user", "port", "home", "recipe", "serve_port", "registry_mirror", "model_from")
#: settings that are checked against other files, so their "file:line" is stored for messages
LOCATED_SETTINGS = ("recipe", "model_from", "serve_port")
#: keys of a host's file that list recipes: those served side by side, and those that take turns in memory
SERVES_KEY, ON_DEMAND_KEY = "serves", "on_demand"
WAKE_KEYS = ("wake", "sleep_after", "stay_awake")


@dataclass(frozen=True)
class _SettingsLayer:
    """A host's settings from a single source: its own file, or a group in groups.yml."""

    file: Shared
    source: Document
    #: place of the settings in the document
    section: Place = ()

    def set_at(self) -> dict[str, str]:
        """See `Host.set_at`."""
        locations = {
            key: self.source.where(*self.section, key)
            for key in LOCATED_SETTINGS
            if getattr(self.file, key) is not None
        }
        named_settings = {"vars": self.file.vars, "secrets": self.file.secrets}
        return locations | {
            f"{key}.{name}": self.source.where(*self.section, key, name)
            for key, settings in named_settings.items()
            for name in settings
        }


@dataclass(frozen=True)
class Inventory:
    """All hosts, groups, clusters and gateways of a project."""

    #: hosts by name; a machine that serves several recipes has one host per recipe, named MACHINE/RECIPE
    hosts: Mapping[str, Host]
    #: names of the hosts by group, including `all`
    groups: Mapping[str, tuple[str, ...]]
    #: minimum number of serving hosts, by group; only groups that set it
    min_serving: Mapping[str, int] = field(default_factory=dict)
    #: clusters by the name of their group
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    #: gateways by the name of their group
    gateways: Mapping[str, Gateway] = field(default_factory=dict)
    #: hosts by the name of their file; `recipe` is None if they serve several
    machines: Mapping[str, Host] = field(default_factory=dict)

    @classmethod
    def load(cls, project: Path, *, may_be_empty: bool = False) -> Inventory:
        """Read a project's hosts/. Raises Refused if a file is invalid or, unless `may_be_empty`, if there is no host."""
        folder = project / "hosts"
        groups = _load_groups(project, folder / GROUPS_FILE)
        documents = {path.stem: _load_host_file(path) for path in patterns.list_host_files(folder)}
        rules.refuse_names(documents, groups)
        if not documents and not may_be_empty:
            raise Refused(
                f"no hosts in {document.format_path(folder)}.", fix="Create hosts/spark1.yml (docs/files/host.md)."
            )
        machines = {name: _build_host(project, name, file, groups) for name, file in documents.items()}
        for machine in machines.values():
            rules.refuse_unknown_source(machine, machines)
        members = patterns.group_members(machines, groups.by_name)
        clusters = rules.build_clusters(documents, groups, members)
        _refuse_cluster_members_with_lists(documents, clusters)
        machines = {name: rules.join_cluster(machine, clusters.values()) for name, machine in machines.items()}
        servers = [
            server
            for name, machine in machines.items()
            for server in _split_by_recipe(project, machine, documents[name])
        ]
        hosts = {server.name: server for server in servers}
        for name, machine in machines.items():
            if documents[name].file.lists_recipes:
                machines[name] = replace(machine, recipe=None)
        min_serving = {
            name: group.min_serving for name, group in groups.by_name.items() if group.min_serving is not None
        }
        gateways = rules.build_gateways(groups, members)
        rules.refuse_unroutable_wakes(servers, gateways)
        return cls(hosts, patterns.group_members(hosts, groups.by_name), min_serving, clusters, gateways, machines)

    def names(self) -> list[str]:
        """Return the names of all hosts."""
        return list(self.hosts)

    def match(self, pattern: str) -> list[Host]:
        """Return the hosts that match an Ansible pattern, in the inventory's order. Raises Refused if none match."""
        groups = {**patterns.implied_groups(self.hosts), **self.groups}
        return [self.hosts[name] for name in patterns.match_hosts(pattern, list(self.hosts), groups)]

    def machines_of(self, hosts: Iterable[Host]) -> list[Host]:
        """Return the machines of these hosts, without duplicates."""
        return [self.machines[name] for name in dict.fromkeys(host.machine for host in hosts)]

    def servers_of(self, machine: str) -> list[Host]:
        """Return the hosts of a machine: one for each recipe that it serves."""
        return [host for host in self.hosts.values() if host.machine == machine]


def find_errors(project: Path) -> list[Refused]:
    """Return one error for each invalid file in hosts/, or else the first that concerns several files."""
    folder = project / "hosts"
    try:
        paths = patterns.list_host_files(folder)
    except Refused as error:
        return [error]
    errors = collect_refusals(
        [partial(_load_groups, project, folder / GROUPS_FILE), *(partial(_load_host_file, path) for path in paths)]
    )
    return errors or collect_refusals([partial(Inventory.load, project, may_be_empty=True)])


def _load_groups(project: Path, path: Path) -> GroupsDocument:
    if not document.exists(path):
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
    by_name = {name: validate(GroupFile, groups_document, data, section_place=(name,)) for name, data in groups.items()}
    for name, group in by_name.items():
        rules.refuse_secrets(group, groups_document, (name,))
        variables.check(group.vars, groups_document, (name,), project)
    return GroupsDocument(by_name, groups_document)


def _load_host_file(path: Path) -> HostDocument:
    source = document.load(path)
    file = validate(HostFile, source)
    rules.refuse_secrets(file, source)
    return HostDocument(file, source)


def _build_host(project: Path, name: str, host_document: HostDocument, groups: GroupsDocument) -> Host:
    file = host_document.file
    variables.check(file.vars, host_document.source, (), project)
    members_by_group = {group_name: group.hosts for group_name, group in groups.by_name.items()}
    host_groups = patterns.list_groups(name, file.groups, members_by_group)
    layers = [
        _SettingsLayer(groups.by_name[group_name], groups.source, (group_name,))
        for group_name in (ALL_HOSTS, *host_groups)
        if group_name in groups.by_name
    ]
    layers.append(_SettingsLayer(file, host_document.source))
    inherited_settings = {
        key: patterns.last_not_none(getattr(layer.file, key) for layer in layers) for key in INHERITED_SETTINGS
    }
    merged_settings = {
        key: dict(ChainMap(*(getattr(layer.file, key) for layer in reversed(layers)))) for key in MERGED_SETTINGS
    }
    recipe = project / "recipes" / f"{inherited_settings['recipe']}.yml"
    fabric = file.fabric
    return Host(
        name=name,
        address=file.address or name,
        connection=file.connection,
        groups=host_groups,
        env=merged_settings["env"],
        vars=merged_settings["vars"],
        secret_sources=merged_settings["secrets"],
        fabric=Fabric(tuple(fabric.interfaces), fabric.address, tuple(fabric.adapters)) if fabric else None,
        where=document.format_path(host_document.source.path),
        set_at={key: location for layer in layers for key, location in layer.set_at().items()},
        key_variable=_read_key_variable(recipe) if file.connection != "ssh" else "",
        **inherited_settings,
    )


@dataclass(frozen=True)
class _ListedRecipe:
    """An entry of `serves` or `on_demand`."""

    file: ServedFile
    #: `serves` or `on_demand`
    key: str
    #: "file:line"
    where: str


def _split_by_recipe(project: Path, machine: Host, host_document: HostDocument) -> list[Host]:
    """Return one host per recipe in `serves` and `on_demand`; the machine itself if it has neither list."""
    if not host_document.file.lists_recipes:
        return [machine]
    entries = _list_recipes(host_document)
    rules.refuse_first(_find_list_mistakes(machine, host_document, entries))
    servers = [_build_server_host(project, machine, entry) for entry in entries]
    recipe_by_container: dict[str, str | None] = {}
    for server, entry in zip(servers, entries, strict=True):
        if server.server in recipe_by_container:
            both_recipes = f"{recipe_by_container[server.server]} and {server.recipe}"
            message = f"{both_recipes} would both run as the container '{visible.display_name(server.server)}'."
            raise Refused(message, where=entry.where, fix="Give one recipe another `container.name`.")
        recipe_by_container[server.server] = server.recipe
    turns = tuple(server.server for server, entry in zip(servers, entries, strict=True) if entry.key == ON_DEMAND_KEY)
    return [replace(server, turns=turns) if server.server in turns else server for server in servers]


def _refuse_cluster_members_with_lists(documents: Mapping[str, HostDocument], clusters: Mapping[str, Cluster]) -> None:
    for cluster in clusters.values():
        for name in cluster.members:
            if documents[name].file.lists_recipes:
                key = SERVES_KEY if documents[name].file.serves is not None else ON_DEMAND_KEY
                where = documents[name].source.where(key)
                rules.refuse_first([rules.cluster_member_mistake(name, cluster.name, key, where)])


def _list_recipes(host_document: HostDocument) -> list[_ListedRecipe]:
    lists = ((SERVES_KEY, host_document.file.serves), (ON_DEMAND_KEY, host_document.file.on_demand))
    return [
        _ListedRecipe(
            ServedFile.model_validate({"recipe": entry}) if isinstance(entry, str) else entry,
            key,
            host_document.source.where(key, n),
        )
        for key, entries in lists
        for n, entry in enumerate(entries or ())
    ]


def _find_list_mistakes(
    machine: Host, host_document: HostDocument, entries: Sequence[_ListedRecipe]
) -> Iterator[Mistake]:
    file, source = host_document.file, host_document.source
    key = entries[0].key
    if file.recipe:
        yield f"`recipe` and `{key}` are both set.", source.where("recipe"), "List all recipes under `serves`."
    if machine.serve_port:
        where = machine.set_at.get("serve_port", source.where(key))
        fix = f"Set the port of each recipe: `{key}: [{{recipe: NAME, port: 8001}}]`."
        yield "`serve_port` is ambiguous: the host has several servers.", where, fix
    if file.on_demand is not None and len(file.on_demand) == 1:
        message = "`on_demand` has only one recipe: it needs at least two to take turns."
        yield message, source.where(ON_DEMAND_KEY), "Add another one, or list it under `serves`."
    yield from _find_wake_mistakes(entries)
    names = [entry.file.recipe for entry in entries]
    for n, (name, entry) in enumerate(zip(names, entries, strict=True)):
        label = visible.display_name(name)
        if problem := check_file_name(name):
            yield f"the recipe '{label}' {problem}.", entry.where, "Name a file in recipes/."
        if name in names[:n]:
            yield f"the recipe {label} is listed twice.", entry.where, "List each recipe once."


def _find_wake_mistakes(entries: Sequence[_ListedRecipe]) -> Iterator[Mistake]:
    has_wake = any(entry.file.wake for entry in entries if entry.key == ON_DEMAND_KEY)
    for entry in entries:
        file, label = entry.file, visible.display_name(entry.file.recipe)
        key = next((key for key in WAKE_KEYS if getattr(file, key) is not None), "")
        if key and entry.key != ON_DEMAND_KEY:
            message = f"`{key}` of {label}: a server under `serves` is always on."
            yield message, entry.where, f"Remove it, or list {label} under `on_demand`."
        elif file.sleep_after and not file.wake:
            message = f"`sleep_after` of {label} has no effect without `wake: on_request`."
            yield message, entry.where, "Add `wake: on_request`, or remove `sleep_after`."
        elif file.stay_awake and not has_wake:
            message = f"`stay_awake` of {label} has no effect: no server under `on_demand` has `wake: on_request`."
            yield message, entry.where, "Add `wake: on_request` to one of them, or remove `stay_awake`."


def _build_server_host(project: Path, machine: Host, entry: _ListedRecipe) -> Host:
    file, name = entry.file, entry.file.recipe
    path = project / "recipes" / f"{name}.yml"
    wake = NO_WAKE
    if entry.key == ON_DEMAND_KEY:
        sleep_after_s = units.parse_duration(file.sleep_after) if file.sleep_after else 0.0
        stay_awake_s = units.parse_duration(file.stay_awake or defaults.MIN_AWAKE_TIME)
        wake = Wake(file.wake is not None, sleep_after_s, stay_awake_s)
    return replace(
        machine,
        name=f"{machine.name}/{name}",
        shared_machine=machine.name,
        recipe=name,
        serve_port=file.port,
        server=_read_container_name(path, name),
        wake=wake,
        key_variable=_read_key_variable(path) if machine.connection != "ssh" else "",
        set_at={**machine.set_at, "recipe": entry.where, "serve_port": entry.where},
    )


def _read_container_name(path: Path, recipe: str) -> str:
    """Return the name of a recipe's container. Mistakes in the recipe are reported when it is loaded."""
    name = _read_section(path, "container").get("name")
    return name if isinstance(name, str) and PATH_COMPONENT.fullmatch(name) else recipe


def _read_key_variable(path: Path) -> str:
    """Return the environment variable that holds a recipe's server key; empty if the recipe names none.

    Mistakes in the recipe are reported when it is loaded.
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
