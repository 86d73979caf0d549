"""Host patterns, as Ansible reads them: `spark1,spark2`  `lab`  `all`  `lab:!spark3`  `lab:&gpu`  `spark*`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence

from sparkwright.errors import Refused
from sparkwright.project.inventory.host import Host


def members(hosts: Mapping[str, Host], groups: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The hosts' names by group, `all` among them. groups: those that have an entry of their own."""
    names = dict.fromkeys(["all", *groups, *(group for host in hosts.values() for group in host.groups)])
    found = {name: tuple(host.name for host in hosts.values() if name in host.groups) for name in names}
    return {**found, "all": tuple(hosts)}


def match(pattern: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The names a pattern means, in the order of hosts: unions first, then `&` cuts, then `!` takes away.

    Raises Refused for a name nobody has and for a pattern that leaves no host.
    """
    parts = [part.strip() for part in re.split(r"[,:]", pattern) if part.strip()]
    chosen: set[str] = set()
    plain = [part for part in parts if part[0] not in "!&"]
    for part in plain or ["all"]:
        chosen |= _named(part, hosts, groups)
    for part in parts:
        if part[0] == "&":
            chosen &= _named(part[1:], hosts, groups)
    for part in parts:
        if part[0] == "!":
            chosen -= _named(part[1:], hosts, groups)
    if not chosen:
        raise Refused(f"the pattern {pattern!r} matches no hosts.", fix=f"Available: {', '.join(hosts)}.")
    return [name for name in hosts if name in chosen]


def _named(word: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> set[str]:
    if word in groups:
        return set(groups[word])
    if word in hosts:
        return {word}
    if any(sign in word for sign in "*?["):
        found = {name for name in hosts if fnmatch.fnmatchcase(name, word)}
        found |= {name for group in fnmatch.filter(groups, word) for name in groups[group]}
        if found:
            return found
    from sparkwright.project.documents.checked import nearest

    raise Refused(f"no host or group named {word!r}.", fix=nearest(word, [*hosts, *groups]))
