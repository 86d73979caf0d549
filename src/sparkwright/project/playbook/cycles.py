"""Names that wait for each other."""

from __future__ import annotations

from collections.abc import Mapping, Set


def find(needs: Mapping[str, Set[str]]) -> tuple[str, ...]:
    """The way from a name back to itself, that name first and last; empty when there is none. needs: of each name the others."""
    left = dict(needs)
    while ready := [name for name in left if not needs[name] & left.keys()]:
        for name in ready:
            del left[name]
    way: list[str] = []
    name = next(iter(left), "")
    while name and name not in way:
        way.append(name)
        name = min(needs[name] & left.keys())
    return (*way[way.index(name) :], name) if way else ()
