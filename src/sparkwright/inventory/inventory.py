"""The hosts there are, with what their groups give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.inventory import patterns, rules, secret_source
from sparkwright.inventory.glance import GROUPS_FILE
from sparkwright.inventory.host import Host
from sparkwright.inventory.models import GroupFile, HostFile, Shared
from sparkwright.secret import Secret
from sparkwright.userfiles import document
from sparkwright.userfiles.checked import check

MERGED = ("env", "secrets", "vars")
INHERITED = ("user", "port", "home", "recipe", "serve_port", "registry_mirror", "model_from")


@dataclass(frozen=True)
class Inventory:
    """hosts: by name. groups: the hosts' names by group, `all` among them. min_serving: of the groups that say it."""

    hosts: Mapping[str, Host]
    groups: Mapping[str, tuple[str, ...]]
    min_serving: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, project: Path) -> Inventory:
        """Read hosts/ of a project. Raises Refused with file and line."""
        folder = project / "hosts"
        groups = _groups(folder / GROUPS_FILE)
        hosts = {path.stem: _host(path, groups) for path in sorted(folder.glob("*.yml")) if path.name != GROUPS_FILE}
        if not hosts:
            raise Refused(f"no host in {document.shown(folder)}.", fix="Write hosts/spark1.yml (docs/files/host.md).")
        floors = {name: group.min_serving for name, group in groups.items() if group.min_serving is not None}
        return cls(hosts, patterns.members(hosts, groups), floors)

    def names(self) -> list[str]:
        """Every host's name."""
        return list(self.hosts)

    def match(self, pattern: str) -> list[Host]:
        """The hosts of an Ansible pattern, in the inventory's order. Raises Refused when there is none."""
        return [self.hosts[name] for name in patterns.match(pattern, list(self.hosts), self.groups)]

    def secrets(self, host: Host) -> dict[str, Secret]:
        """The host's secrets, read now. One whose environment variable or file is not there is left out.

        Raises Refused for one that is too short.
        """
        found = {name: secret_source.read(name, source) for name, source in host.secret_sources.items()}
        for name, secret in found.items():
            secret_source.refuse_short(name, secret, str(host.where))
        return {name: secret for name, secret in found.items() if secret is not None}


def _groups(path: Path) -> dict[str, GroupFile]:
    if not path.exists():
        return {}
    read = document.load(path)
    if not isinstance(read.data, dict | None):
        raise Refused("groups.yml is a mapping of groups by name.", where=read.where())
    groups = {name: data if data is not None else {} for name, data in (read.data or {}).items()}
    checked = {name: check(GroupFile, read, data, at=(name,)) for name, data in groups.items()}
    for name, group in checked.items():
        rules.refuse(group, read, (name,))
    return checked


def _host(path: Path, groups: Mapping[str, GroupFile]) -> Host:
    read = document.load(path)
    own = check(HostFile, read, read.data if read.data is not None else {}, at=())
    rules.refuse(own, read)
    mine = [
        *own.groups,
        *(name for name, group in groups.items() if path.stem in group.hosts and name not in own.groups),
    ]
    layers: list[Shared] = [*(groups[name] for name in ("all", *mine) if name in groups), own]
    inherited = {key: _last(layers, key) for key in INHERITED}
    merged: dict[str, dict[str, Any]] = {key: {} for key in MERGED}
    for layer in layers:
        for key in MERGED:
            merged[key].update(getattr(layer, key))
    return Host(
        name=path.stem,
        address=own.address or path.stem,
        connection=own.connection,
        groups=tuple(mine),
        env=merged["env"],
        vars=merged["vars"],
        secret_sources=merged["secrets"],
        where=document.shown(path),
        key_variable=_key_variable(path.parent.parent / "recipes" / f"{inherited['recipe']}.yml")
        if own.connection != "ssh"
        else "",
        **inherited,
    )


def _key_variable(recipe: Path) -> str:
    """The environment variable with the key of a recipe's server; empty for none. What is wrong in it its check will say."""
    try:
        if b"server_key" not in recipe.read_bytes():
            return ""
        data = document.load(recipe).data
        return str(data["server_key"].get("env") or "")
    except (OSError, ValueError, Refused, AttributeError, KeyError, TypeError):
        return ""


def _last(layers: Iterable[Shared], key: str) -> Any:
    found = None
    for layer in layers:
        value = getattr(layer, key)
        found = found if value is None else value
    return found
