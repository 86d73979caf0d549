"""Host patterns, as Ansible reads them: `spark1,spark2`  `lab`  `all`  `lab:!spark3`  `lab:&gpu`  `spark*`."""

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


def list_groups(name: str, own_groups: Iterable[str], members_by_group: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return the groups of a host in order.

    A later group overrides an earlier one, and the host's own file overrides them all. `all`, which any group overrides, is left
    out.

    Args:
        own_groups: the groups that its own file names.
        members_by_group: the hosts that each group of groups.yml lists.
    """
    listing_groups = [group for group, hosts in members_by_group.items() if name in hosts]
    return tuple(dict.fromkeys(group for group in (*own_groups, *listing_groups) if group != ALL_HOSTS))


def last_set(values: Iterable[Any]) -> Any:
    """Return the last value that is not None, or None.

    values: those of a setting, of the group `all` first, of the host's own file last.
    """
    result = None
    for value in values:
        result = result if value is None else value
    return result


def group_members(hosts: Mapping[str, Host], groups: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of hosts by group, `all` among them. groups: those with an entry of their own."""
    names = dict.fromkeys([ALL_HOSTS, *groups, *(group for host in hosts.values() for group in host.groups)])
    members_by_group = {name: tuple(host.name for host in hosts.values() if name in host.groups) for name in names}
    return {**members_by_group, ALL_HOSTS: tuple(hosts)}


def implied_groups(hosts: Mapping[str, Host]) -> dict[str, tuple[str, ...]]:
    """Return the implied groups: a machine that serves several recipes, and as `/RECIPE` all hosts that serve a recipe."""
    groups: dict[str, tuple[str, ...]] = {}
    for host in hosts.values():
        for name in ([host.on] if host.on else []) + ([f"/{host.recipe}"] if host.recipe else []):
            groups[name] = (*groups.get(name, ()), host.name)
    return groups


def match_hosts(pattern: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names that a pattern matches, in the order of hosts: unions first, then `&` intersects, then `!` removes.

    Raises Refused for an unknown name, and for a pattern that matches no host.
    """
    parts = [part.strip() for part in re.split(r"[,:]", pattern) if part.strip()]
    matched: set[str] = set()
    unions = [part for part in parts if part[0] not in "!&"]
    for part in unions or [ALL_HOSTS]:
        matched |= _resolve_word(part, hosts, groups)
    for part in parts:
        if part[0] == "&":
            matched &= _resolve_word(part[1:], hosts, groups)
    for part in parts:
        if part[0] == "!":
            matched -= _resolve_word(part[1:], hosts, groups)
    if not matched and (recipe := next((part[2:] for part in parts if part.startswith("&/")), "")):
        where = ", ".join(part for part in parts if not part.startswith("&/"))
        serving = ", ".join(groups[f"/{recipe}"])
        raise Refused(f"{where} does not serve the recipe {recipe!r}.", fix=f"It is served by: {serving}.")
    if not matched:
        raise Refused(f"the pattern {pattern!r} matches no hosts.", fix=f"Available: {', '.join(hosts)}.")
    return [name for name in hosts if name in matched]


def _resolve_word(word: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> set[str]:
    if word in groups:
        return set(groups[word])
    if word in hosts:
        return {word}
    if any(sign in word for sign in "*?["):
        matching = {name for name in hosts if fnmatch.fnmatchcase(name, word)}
        matching |= {
            name
            for group in fnmatch.filter([group for group in groups if not group.startswith("/")], word)
            for name in groups[group]
        }
        if matching:
            return matching
    from sparkwright.project.documents.validation import suggest_name

    if word.startswith("/"):
        recipes = [name[1:] for name in groups if name.startswith("/")]
        raise Refused(
            f"no host serves the recipe {word[1:]!r}.", fix=suggest_name(word[1:], recipes) if recipes else ""
        )
    known = [name for name in (*hosts, *groups) if not name.startswith("/")]
    raise Refused(f"no host or group named {word!r}.", fix=suggest_name(word, known))


# The addresses of hosts, read from their files before anything is checked, so that connecting can begin.
#
# The code that checks the files takes 70 ms to import, a third of a login. A host read here is compared with the checked one
# (`Host.connection_settings`) before anything is sent to it.

GROUPS_FILE = "groups.yml"


def read_ssh_hosts(project: Path, pattern: str) -> list[Host]:
    """Return the hosts of a pattern reached over ssh, with only their connection settings and groups, or none if in doubt."""
    folder = project / "hosts"
    try:
        groups = _load_mapping(folder / GROUPS_FILE)
        by_name = {host.name: host for path in list_host_files(folder) for host in _read_hosts(path, groups)}
        members_by_group = {**implied_groups(by_name), **group_members(by_name, groups)}
        names = match_hosts(pattern, list(by_name), members_by_group) if pattern else []
    except (Refused, AttributeError, TypeError, KeyError):
        return []  # the check reports the mistake
    return [by_name[name] for name in names if by_name[name].connection == "ssh" and _has_valid_types(by_name[name])]


def list_host_files(folder: Path) -> list[Path]:
    """Return the files of hosts/ that describe a host. Raises Refused as `document.list_files` does."""
    return [path for path in document.list_files(folder) if path.name != GROUPS_FILE]


def _read_hosts(path: Path, groups: Mapping[str, Any]) -> list[Host]:
    """Return a host, or one for each recipe that it serves."""
    own = _load_mapping(path)
    host = _build_host(path, own, groups)
    lists = [own[key] for key in ("serves", "on_demand") if own.get(key) is not None]
    if not lists:
        return [host]
    names = [item if isinstance(item, str) else item["recipe"] for listed in lists for item in listed]
    return [replace(host, name=f"{host.name}/{name}", on=host.name, recipe=name) for name in names]


def _build_host(path: Path, own: Mapping[str, Any], groups: Mapping[str, Any]) -> Host:
    members_by_group = {name: (group or {}).get("hosts") or () for name, group in groups.items()}
    host_groups = list_groups(path.stem, own.get("groups") or (), members_by_group)
    layers = [*(groups.get(name) or {} for name in (ALL_HOSTS, *host_groups)), own]
    user, port, recipe = (last_set(layer.get(key) for layer in layers) for key in ("user", "port", "recipe"))
    address, connection = own.get("address") or path.stem, own.get("connection") or "ssh"
    return Host(path.stem, address, connection, user=user, port=port, groups=host_groups, recipe=recipe)


def _has_valid_types(host: Host) -> bool:
    return isinstance(host.address, str) and isinstance(host.user, str | None) and isinstance(host.port, int | None)


def _load_mapping(path: Path) -> Mapping[str, Any]:
    return document.load(path).data or {} if path.is_file() else {}
