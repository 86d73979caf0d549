"""One play that rolls over its hosts: the next batch, the hosts that may be stopped, and the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sparkwright.fleet.guard import Guard
from sparkwright.fleet.record import Prints, Record
from sparkwright.project.rollout_policy import RolloutPolicy


@dataclass
class Roll:
    """One play that rolls over its hosts."""

    policy: RolloutPolicy
    #: number of hosts of the run, with those of an earlier, resumed part; 0: as many as the play has
    everyone: int = 0
    #: check all hosts before the first batch
    checks_first: bool = False
    #: the hosts are a cluster: none is started if the plan of one can't be made
    together: bool = False
    #: limits which hosts may stop serving
    guard: Guard | None = None
    #: the record of the run
    record: Record | None = None
    #: saves the record
    save: Callable[[Record], None] = lambda record: None
    #: returns what a host was made from
    prints: Callable[[str], Prints] = lambda host: {}
    #: hosts that are finished after this play; None: all of them
    finishes: frozenset[str] | None = None
    #: number of finished batches
    batch: int = field(default=0, init=False)
    _begun: int = field(default=0, init=False)

    def next(self, waiting: Sequence[str], proved: Sequence[str]) -> tuple[list[str], str]:
        """Return the next batch of the waiting hosts; if it is empty, why none may go.

        proved: hosts of the last batch that were seen to serve, and must still do so.
        """
        everyone = self.everyone or len(waiting) + self._begun
        wanted = list(waiting[: self.policy.size(self.batch, everyone)])
        self._begun += len(wanted)
        if self.guard is None:
            return wanted, ""
        silent = self.guard.silent(proved)
        if silent:
            return [], f"{', '.join(silent)} stopped serving after its turn"
        go, why = self.guard.may_go(wanted)
        self._begun -= len(wanted) - len(go)
        return go, "" if go else why

    def begins(self, batch: Sequence[str]) -> None:
        """Record a batch before it is touched."""
        if self.record is not None:
            self.record.under_way = list(batch)
            self.save(self.record)

    def ended(self, done: Sequence[str], failed: Mapping[str, str]) -> None:
        """Record a finished batch. failed: the reason by host."""
        self.batch += 1
        self.looked(done, failed)

    def looked(self, done: Sequence[str], failed: Mapping[str, str]) -> None:
        """Record hosts that need no change, or would be refused, before any host is touched."""
        if self.record is None:
            return
        through = [name for name in done if self.finishes is None or name in self.finishes]
        self.record.done.update({name: dict(self.prints(name)) for name in through})
        self.record.failed = {k: why for k, why in {**self.record.failed, **failed}.items() if k not in through}
        self.record.under_way = []
        self.save(self.record)
