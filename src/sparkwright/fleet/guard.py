"""The guard that enforces `min_serving` of groups while a run stops servers, based on which hosts serve right now."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sparkwright.defaults import FORKS


@dataclass(frozen=True)
class Floor:
    """The minimum number of a group's hosts that must serve at any moment."""

    group: str
    hosts: tuple[str, ...]
    min_serving: int


class Guard:
    """Limits how many serving hosts of a group a batch may stop.

    Answers are never cached, because a host that served before the last batch may no longer do so.

    Args:
        floors: the groups to protect.
        serves: queries hosts now, and returns the names of those that generated a token.
    """

    def __init__(self, floors: Sequence[Floor], serves: Callable[[Sequence[str]], set[str]]) -> None:
        self._floors = floors
        self._serves = serves

    def may_go(self, batch: Sequence[str]) -> tuple[list[str], str]:
        """Return the hosts of a batch that may be stopped now, and the reason why the others may not.

        A host that does not serve may always be stopped.
        """
        touched = [floor for floor in self._floors if set(floor.hosts) & set(batch)]
        serving = self._serves(batch) if touched else set()
        spare = {floor.group: self._spare(floor, batch, serving) for floor in touched if set(floor.hosts) & serving}
        go, why = list[str](), ""
        for name in batch:
            mine = [floor for floor in touched if name in floor.hosts] if name in serving else []
            short = next((floor for floor in mine if spare[floor.group] < 1), None)
            if short is not None:
                why = f"{short.group} must keep {short.min_serving} serving (min_serving), and no more are serving now"
                continue
            for floor in mine:
                spare[floor.group] -= 1
            go.append(name)
        return go, why

    def silent(self, proved: Sequence[str]) -> list[str]:
        """Return the hosts that were verified to serve and no longer do."""
        serving = self._serves(proved) if proved else set()
        return [name for name in proved if name not in serving]

    def _spare(self, floor: Floor, batch: Sequence[str], serving: set[str]) -> int:
        """Return how many of the group's serving hosts in the batch may stop.

        The group's other hosts are queried only until enough of them are found to serve.
        """
        here = len(set(floor.hosts) & serving)
        others = [name for name in floor.hosts if name not in batch]
        found = 0
        for start in range(0, len(others), FORKS):
            if found >= floor.min_serving:
                break
            found += len(self._serves(others[start : start + FORKS]))
        return here + found - floor.min_serving


def floors(
    groups: Mapping[str, Sequence[str]], explicit: Mapping[str, int], hosts_in_run: Sequence[str], everyone: str
) -> list[Floor]:
    """Return the minimum of each group that a run on the selected hosts must keep.

    Args:
        explicit: `min_serving` from groups.yml. By default one host of a group keeps serving if the run includes several of the
            group's machines.
        everyone: name of the group of all hosts, which only counts if it is explicit.
    """
    found = []
    for group, hosts in groups.items():
        touched = set(hosts) & set(hosts_in_run)
        machines = {name.partition("/")[0] for name in touched}
        usual = 1 if len(machines) > 1 and group != everyone else 0
        least = explicit.get(group, usual)
        if touched and least > 0:
            found.append(Floor(group, tuple(hosts), least))
    return found
