"""The guard that enforces the groups' `min_serving` while a run stops servers."""

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

    Hosts are queried again for each batch, because they may have stopped serving since the previous one.

    Args:
        floors: the groups to protect.
        find_serving: queries hosts and returns the names of those that generate a token.
    """

    def __init__(self, floors: Sequence[Floor], find_serving: Callable[[Sequence[str]], set[str]]) -> None:
        self._floors = floors
        self._find_serving = find_serving

    def select_stoppable(self, batch: Sequence[str]) -> tuple[list[str], str]:
        """Return the hosts of a batch that may be stopped now, and the reason why the others may not, empty if all may.

        A host that is not serving may always be stopped.
        """
        floors = [floor for floor in self._floors if set(floor.hosts) & set(batch)]
        serving_hosts = self._find_serving(batch) if floors else set()
        stoppable_counts = {
            floor.group: self._count_stoppable(floor, batch, serving_hosts)
            for floor in floors
            if set(floor.hosts) & serving_hosts
        }
        stoppable_hosts, reason = list[str](), ""
        for name in batch:
            host_floors = [floor for floor in floors if name in floor.hosts] if name in serving_hosts else []
            violated_floor = next((floor for floor in host_floors if stoppable_counts[floor.group] < 1), None)
            if violated_floor is not None:
                minimum = f"{violated_floor.group} must keep {violated_floor.min_serving} serving (min_serving)"
                reason = f"{minimum}, and no more are serving now"
                continue
            for floor in host_floors:
                stoppable_counts[floor.group] -= 1
            stoppable_hosts.append(name)
        return stoppable_hosts, reason

    def find_not_serving(self, verified_hosts: Sequence[str]) -> list[str]:
        """Return the hosts that were verified to serve and no longer do."""
        serving_hosts = self._find_serving(verified_hosts) if verified_hosts else set()
        return [name for name in verified_hosts if name not in serving_hosts]

    def _count_stoppable(self, floor: Floor, batch: Sequence[str], serving_hosts: set[str]) -> int:
        """Return how many serving hosts of a group may be stopped. Hosts outside the batch are queried until enough serve."""
        serving_in_batch = len(set(floor.hosts) & serving_hosts)
        other_hosts = [name for name in floor.hosts if name not in batch]
        serving_elsewhere = 0
        for start in range(0, len(other_hosts), FORKS):
            if serving_elsewhere >= floor.min_serving:
                break
            serving_elsewhere += len(self._find_serving(other_hosts[start : start + FORKS]))
        return serving_in_batch + serving_elsewhere - floor.min_serving


def compute_floors(
    groups: Mapping[str, Sequence[str]],
    min_serving_by_group: Mapping[str, int],
    hosts_in_run: Sequence[str],
    all_group: str,
) -> list[Floor]:
    """Return the minimum that a run on the given hosts must keep serving in each group.

    The default is 1 for a group if the run includes several of its machines.

    Args:
        groups: hosts by group.
        min_serving_by_group: `min_serving` in groups.yml, by group.
        all_group: name of the group of all hosts, which has no default.
    """
    floors = []
    for group, hosts in groups.items():
        group_hosts_in_run = set(hosts) & set(hosts_in_run)
        machines = {name.partition("/")[0] for name in group_hosts_in_run}
        default = 1 if len(machines) > 1 and group != all_group else 0
        min_serving = min_serving_by_group.get(group, default)
        if group_hosts_in_run and min_serving > 0:
            floors.append(Floor(group, tuple(hosts), min_serving))
    return floors
