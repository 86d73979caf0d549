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

    def select_stoppable(self, batch: Sequence[str]) -> tuple[list[str], str]:
        """Return the hosts of a batch that may be stopped now, and the reason why the others may not.

        A host that does not serve may always be stopped.
        """
        touched = [floor for floor in self._floors if set(floor.hosts) & set(batch)]
        serving = self._serves(batch) if touched else set()
        spare = {
            floor.group: self._count_spare(floor, batch, serving) for floor in touched if set(floor.hosts) & serving
        }
        allowed, reason = list[str](), ""
        for name in batch:
            host_floors = [floor for floor in touched if name in floor.hosts] if name in serving else []
            violated = next((floor for floor in host_floors if spare[floor.group] < 1), None)
            if violated is not None:
                reason = f"{violated.group} must keep {violated.min_serving} serving (min_serving), and no more are serving now"
                continue
            for floor in host_floors:
                spare[floor.group] -= 1
            allowed.append(name)
        return allowed, reason

    def find_silent(self, proved: Sequence[str]) -> list[str]:
        """Return the hosts that were verified to serve and no longer do."""
        serving = self._serves(proved) if proved else set()
        return [name for name in proved if name not in serving]

    def _count_spare(self, floor: Floor, batch: Sequence[str], serving: set[str]) -> int:
        """Return how many of the group's serving hosts in the batch may stop.

        The group's other hosts are queried only until enough of them are found to serve.
        """
        serving_in_batch = len(set(floor.hosts) & serving)
        others = [name for name in floor.hosts if name not in batch]
        serving_elsewhere = 0
        for start in range(0, len(others), FORKS):
            if serving_elsewhere >= floor.min_serving:
                break
            serving_elsewhere += len(self._serves(others[start : start + FORKS]))
        return serving_in_batch + serving_elsewhere - floor.min_serving


def compute_floors(
    groups: Mapping[str, Sequence[str]], explicit: Mapping[str, int], hosts_in_run: Sequence[str], all_group: str
) -> list[Floor]:
    """Return the minimum of each group that a run on the selected hosts must keep.

    Args:
        explicit: `min_serving` from groups.yml. By default one host of a group keeps serving if the run includes several of the
            group's machines.
        all_group: name of the group of all hosts, which only counts if it is explicit.
    """
    result = []
    for group, hosts in groups.items():
        touched = set(hosts) & set(hosts_in_run)
        machines = {name.partition("/")[0] for name in touched}
        default_minimum = 1 if len(machines) > 1 and group != all_group else 0
        minimum = explicit.get(group, default_minimum)
        if touched and minimum > 0:
            result.append(Floor(group, tuple(hosts), minimum))
    return result
