"""The addresses of hosts, read from their files before anything is checked, so that connecting can begin.

The code that checks the files takes 70 ms to import, a third of a login. A host read here is compared with the checked one
(`Host.way`) before anything is sent to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.inventory import patterns
from sparkwright.project.inventory.host import Host

GROUPS_FILE = "groups.yml"


def hosts(project: Path, pattern: str) -> list[Host]:
    """Return the hosts of a pattern that are reached over ssh, with only their `way` and groups; none of them if in doubt."""
    folder = project / "hosts"
    try:
        groups = _read(folder / GROUPS_FILE)
        found = {host.name: host for path in files(folder) for host in _hosts(path, groups)}
        named = {**patterns.implied(found), **patterns.members(found, groups)}
        names = patterns.match(pattern, list(found), named) if pattern else []
    except (Refused, AttributeError, TypeError, KeyError):
        return []  # the check reports the mistake
    return [found[name] for name in names if found[name].connection == "ssh" and _plain(found[name])]


def files(folder: Path) -> list[Path]:
    """Return the files of hosts/ that describe a host. Raises Refused as `document.files` does."""
    return [path for path in document.files(folder) if path.name != GROUPS_FILE]


def _hosts(path: Path, groups: Mapping[str, Any]) -> list[Host]:
    """Return a host, or one for each recipe that it serves."""
    own = _read(path)
    host = _host(path, own, groups)
    lists = [own[key] for key in ("serves", "on_demand") if own.get(key) is not None]
    if not lists:
        return [host]
    names = [item if isinstance(item, str) else item["recipe"] for listed in lists for item in listed]
    return [replace(host, name=f"{host.name}/{name}", on=host.name, recipe=name) for name in names]


def _host(path: Path, own: Mapping[str, Any], groups: Mapping[str, Any]) -> Host:
    listed = {name: (group or {}).get("hosts") or () for name, group in groups.items()}
    mine = patterns.groups_of(path.stem, own.get("groups") or (), listed)
    layers = [*(groups.get(name) or {} for name in (patterns.EVERYONE, *mine)), own]
    user, port, recipe = (patterns.last(layer.get(key) for layer in layers) for key in ("user", "port", "recipe"))
    address, connection = own.get("address") or path.stem, own.get("connection") or "ssh"
    return Host(path.stem, address, connection, user=user, port=port, groups=mine, recipe=recipe)


def _plain(host: Host) -> bool:
    return isinstance(host.address, str) and isinstance(host.user, str | None) and isinstance(host.port, int | None)


def _read(path: Path) -> Mapping[str, Any]:
    return document.load(path).data or {} if path.is_file() else {}
