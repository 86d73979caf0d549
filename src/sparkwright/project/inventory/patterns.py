"""Host patterns, as Ansible reads them: `spark1,spark2`  `lab`  `all`  `lab:!spark3`  `lab:&gpu`  `spark*`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.inventory.host import Host

EVERYONE = "all"


def groups_of(name: str, named: Iterable[str], listed: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return the groups of a host in order.

    A later group overrides an earlier one, and the host's own file overrides them all. `all`, which any group overrides, is left
    out.

    Args:
        named: the groups that its own file names.
        listed: the hosts that each group of groups.yml lists.
    """
    mine = [group for group, hosts in listed.items() if name in hosts]
    return tuple(dict.fromkeys(group for group in (*named, *mine) if group != EVERYONE))


def last(values: Iterable[Any]) -> Any:
    """Return the last value that is not None, or None.

    values: those of a setting, of the group `all` first, of the host's own file last.
    """
    found = None
    for value in values:
        found = found if value is None else value
    return found


def members(hosts: Mapping[str, Host], groups: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the names of hosts by group, `all` among them. groups: those with an entry of their own."""
    names = dict.fromkeys([EVERYONE, *groups, *(group for host in hosts.values() for group in host.groups)])
    found = {name: tuple(host.name for host in hosts.values() if name in host.groups) for name in names}
    return {**found, EVERYONE: tuple(hosts)}


def implied(hosts: Mapping[str, Host]) -> dict[str, tuple[str, ...]]:
    """Return the implied groups: a machine that serves several recipes, and as `/RECIPE` all hosts that serve a recipe."""
    found: dict[str, tuple[str, ...]] = {}
    for host in hosts.values():
        for name in ([host.on] if host.on else []) + ([f"/{host.recipe}"] if host.recipe else []):
            found[name] = (*found.get(name, ()), host.name)
    return found


def match(pattern: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names that a pattern matches, in the order of hosts: unions first, then `&` intersects, then `!` removes.

    Raises Refused for an unknown name, and for a pattern that matches no host.
    """
    parts = [part.strip() for part in re.split(r"[,:]", pattern) if part.strip()]
    matched: set[str] = set()
    plain = [part for part in parts if part[0] not in "!&"]
    for part in plain or [EVERYONE]:
        matched |= _named(part, hosts, groups)
    for part in parts:
        if part[0] == "&":
            matched &= _named(part[1:], hosts, groups)
    for part in parts:
        if part[0] == "!":
            matched -= _named(part[1:], hosts, groups)
    if not matched and (recipe := next((part[2:] for part in parts if part.startswith("&/")), "")):
        where = ", ".join(part for part in parts if not part.startswith("&/"))
        serving = ", ".join(groups[f"/{recipe}"])
        raise Refused(f"{where} does not serve the recipe {recipe!r}.", fix=f"It is served by: {serving}.")
    if not matched:
        raise Refused(f"the pattern {pattern!r} matches no hosts.", fix=f"Available: {', '.join(hosts)}.")
    return [name for name in hosts if name in matched]


def _named(word: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> set[str]:
    if word in groups:
        return set(groups[word])
    if word in hosts:
        return {word}
    if any(sign in word for sign in "*?["):
        found = {name for name in hosts if fnmatch.fnmatchcase(name, word)}
        found |= {
            name
            for group in fnmatch.filter([group for group in groups if not group.startswith("/")], word)
            for name in groups[group]
        }
        if found:
            return found
    from sparkwright.project.documents.validation import nearest

    if word.startswith("/"):
        recipes = [name[1:] for name in groups if name.startswith("/")]
        raise Refused(f"no host serves the recipe {word[1:]!r}.", fix=nearest(word[1:], recipes) if recipes else "")
    known = [name for name in (*hosts, *groups) if not name.startswith("/")]
    raise Refused(f"no host or group named {word!r}.", fix=nearest(word, known))
