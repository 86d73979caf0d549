"""Matches hosts against patterns in Ansible's syntax: `spark1,spark2`  `lab`  `all`  `lab:!spark3`  `lab:&gpu`  `spark*`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.inventory.host import Host

ALL_HOSTS = "all"
GROUPS_FILE = "groups.yml"


def list_groups(name: str, own_groups: Iterable[str], members_by_group: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return the groups of a host, except `all`. Settings of later groups override those of earlier ones.

    Args:
        own_groups: `groups` of the host's file.
        members_by_group: `hosts` of each group in groups.yml.
    """
    groups_listing_host = [group for group, hosts in members_by_group.items() if name in hosts]
    return tuple(dict.fromkeys(group for group in (*own_groups, *groups_listing_host) if group != ALL_HOSTS))


def last_not_none(values: Iterable[Any]) -> Any:
    """Return the last value that is not None, or None."""
    return next((value for value in reversed([*values]) if value is not None), None)


def group_members(hosts: Mapping[str, Host], groups: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of hosts by group, including `all`. groups: those in groups.yml, even if they have no hosts."""
    names = dict.fromkeys([ALL_HOSTS, *groups, *(group for host in hosts.values() for group in host.groups)])
    members_by_group = {name: tuple(host.name for host in hosts.values() if name in host.groups) for name in names}
    return {**members_by_group, ALL_HOSTS: tuple(hosts)}


def implied_groups(hosts: Mapping[str, Host]) -> dict[str, tuple[str, ...]]:
    """Return the implicit groups: one per machine that serves several recipes, and one per recipe, named `/RECIPE`."""
    groups: dict[str, tuple[str, ...]] = {}
    for host in hosts.values():
        for name in ([host.shared_machine] if host.shared_machine else []) + (
            [f"/{host.recipe}"] if host.recipe else []
        ):
            groups[name] = (*groups.get(name, ()), host.name)
    return groups


def match_hosts(pattern: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the hosts that match a pattern, in the order of `hosts`: unions first, then `&` intersects, then `!` removes.

    Raises Refused for an unknown name, and if no host matches.
    """
    parts = [part.strip() for part in re.split(r"[,:]", pattern) if part.strip()]
    matched_names: set[str] = set()
    union_words = [part for part in parts if part[0] not in "!&"]
    for part in union_words or [ALL_HOSTS]:
        matched_names |= _resolve_word(part, hosts, groups)
    for part in parts:
        if part[0] == "&":
            matched_names &= _resolve_word(part[1:], hosts, groups)
    for part in parts:
        if part[0] == "!":
            matched_names -= _resolve_word(part[1:], hosts, groups)
    if not matched_names and (recipe := next((part[2:] for part in parts if part.startswith("&/")), "")):
        selected_text = ", ".join(part for part in parts if not part.startswith("&/"))
        serving_hosts_text = ", ".join(groups[f"/{recipe}"])
        raise Refused(f"{selected_text} does not serve the recipe {recipe!r}.", fix=f"Served by: {serving_hosts_text}.")
    if not matched_names:
        raise Refused(f"the pattern {pattern!r} matches no hosts.", fix=f"Available: {', '.join(hosts)}.")
    return [name for name in hosts if name in matched_names]


def _resolve_word(word: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> set[str]:
    if word in groups:
        return set(groups[word])
    if word in hosts:
        return {word}
    if any(wildcard in word for wildcard in "*?["):
        matching_names = {name for name in hosts if fnmatch.fnmatchcase(name, word)}
        for group, members in groups.items():
            if not group.startswith("/") and fnmatch.fnmatchcase(group, word):
                matching_names.update(members)
        if matching_names:
            return matching_names
    from sparkwright.project.documents.validation import suggest_name

    if word.startswith("/"):
        recipes = [name[1:] for name in groups if name.startswith("/")]
        raise Refused(f"no host serves the recipe {word[1:]!r}.", fix=suggest_name(word[1:], recipes))
    names = [name for name in (*hosts, *groups) if not name.startswith("/")]
    raise Refused(f"no host or group named {word!r}.", fix=suggest_name(word, names))


# Read the hosts' addresses before the files are validated, so that connections can be opened early.
#
# Importing the validation takes 70 ms, a third of a login. Before anything is sent to a host, the settings read here are
# compared with the validated ones (`Host.connection_settings`).


def read_ssh_hosts(project: Path, pattern: str) -> list[Host]:
    """Return the ssh hosts that match a pattern, with only connection settings and groups; empty if a file is invalid."""
    folder = project / "hosts"
    try:
        groups = _load_mapping(folder / GROUPS_FILE)
        hosts_by_name = {host.name: host for path in list_host_files(folder) for host in _read_hosts(path, groups)}
        members_by_group = {**implied_groups(hosts_by_name), **group_members(hosts_by_name, groups)}
        names = match_hosts(pattern, list(hosts_by_name), members_by_group) if pattern else []
    except (Refused, AttributeError, TypeError, KeyError):
        return []  # validation reports the mistake
    return [
        hosts_by_name[name]
        for name in names
        if hosts_by_name[name].connection == "ssh" and _has_valid_types(hosts_by_name[name])
    ]


def list_host_files(folder: Path) -> list[Path]:
    """Return the files of hosts/ that describe a host. Raises Refused as `document.list_files` does."""
    return [path for path in document.list_files(folder) if path.name != GROUPS_FILE]


def _read_hosts(path: Path, groups: Mapping[str, Any]) -> list[Host]:
    settings = _load_mapping(path)
    host = _build_host(path, settings, groups)
    lists = [settings[key] for key in ("serves", "on_demand") if settings.get(key) is not None]
    if not lists:
        return [host]
    names = [entry if isinstance(entry, str) else entry["recipe"] for entries in lists for entry in entries]
    return [replace(host, name=f"{host.name}/{name}", shared_machine=host.name, recipe=name) for name in names]


def _build_host(path: Path, settings: Mapping[str, Any], groups: Mapping[str, Any]) -> Host:
    members_by_group = {name: (group or {}).get("hosts") or () for name, group in groups.items()}
    host_groups = list_groups(path.stem, settings.get("groups") or (), members_by_group)
    layers = [*(groups.get(name) or {} for name in (ALL_HOSTS, *host_groups)), settings]
    user, port, recipe = (last_not_none(layer.get(key) for layer in layers) for key in ("user", "port", "recipe"))
    address, connection = settings.get("address") or path.stem, settings.get("connection") or "ssh"
    return Host(path.stem, address, connection, user=user, port=port, groups=host_groups, recipe=recipe)


def _has_valid_types(host: Host) -> bool:
    return isinstance(host.address, str) and isinstance(host.user, str | None) and isinstance(host.port, int | None)


def _load_mapping(path: Path) -> Mapping[str, Any]:
    return document.load(path).data or {} if path.is_file() else {}
