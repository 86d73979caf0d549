"""The shared state of a cluster's runs: the joined members, the barriers with their data, and failures.

The head orders all events and sends them to every member, which applies them to its own ClusterState. So all members get
the same outcome for each barrier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparkwright.host.cluster.wire import WireError
from sparkwright.protocol.cluster import Cluster
from sparkwright.trust import bounds, shapes
from sparkwright.visible import one_line

#: a failure in the forward phase does not fail barriers of the rescue phase, in which all members restore their previous servers
FORWARD, RESCUE = PHASES = ("forward", "rescue")
BARRIER_NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")
MAX_TEXT_CHARS = 1000
#: maximum number of barriers in one run
MAX_BARRIERS = 200


class BarrierKey(NamedTuple):
    """The identity of a barrier; an empty name means the join."""

    phase: str
    name: str


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a member."""

    #: message with the member's name
    text: str
    #: True if that member had changed nothing
    refused: bool = False


def _validate_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("is not text")
    return one_line(value, max_chars=MAX_TEXT_CHARS)


_BARRIER_SHAPE = {"phase": frozenset(PHASES), "barrier": BARRIER_NAME_PATTERN}
_FAILURE_SHAPE = {"text": _validate_text, "refused": bool}
#: messages from a member to the head, by kind
MESSAGE_SHAPES: dict[str, dict[str, Any]] = {
    "alive": {},
    "join": {},
    "arrive": {**_BARRIER_SHAPE, "data": {str: object}},
    "overdue": {
        **_BARRIER_SHAPE,
        "barrier": (BARRIER_NAME_PATTERN, frozenset(("",))),
        "waited_s": shapes.number_between(0, 10**9),
    },
    "fail": {**_FAILURE_SHAPE, "phase": frozenset(PHASES), "at": _validate_text},
    "bye": {},
}
#: events that the head sends to all members, by kind
EVENT_SHAPES: dict[str, dict[str, Any]] = {
    "alive": {},
    "joined": {"rank": shapes.integer, "now_s": shapes.moment},
    "arrived": {"rank": shapes.integer, **_BARRIER_SHAPE, "data": {str: object}},
    "failed": {"phase": frozenset(PHASES), **_FAILURE_SHAPE},
    "lost": {"rank": shapes.integer, "text": _validate_text},
    "gone": {"rank": shapes.integer},
}


def validate_message(message: dict[str, Any], kinds: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the valid fields of a message, with printable strings. Raises WireError."""
    kind = message.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise WireError("a message has an unknown kind")
    try:
        fields: dict[str, Any] = shapes.validate(message, kinds[kind], "")
        return {**fields, "data": bounds.sanitize(fields["data"])} if "data" in fields else fields
    except ValueError:
        raise WireError(f"a message ({kind}) is invalid") from None


class ClusterState:
    """The state of a cluster's runs, as it results from the events applied in the head's order."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.joined: set[int] = set()
        #: ranks that have ended their run
        self.gone: set[int] = set()
        #: messages about lost members, by rank
        self.lost: dict[int, str] = {}
        #: first failure in each phase
        self.failures: dict[str, Failure] = {}
        #: shared data, by barrier and rank
        self._data_by_barrier: dict[BarrierKey, dict[int, Any]] = {}
        #: outcome of each barrier; None if all members arrived
        self._outcomes: dict[BarrierKey, Failure | None] = {}

    def apply(self, event: dict[str, Any]) -> None:
        """Apply an event. Raises WireError if it names an unknown rank or exceeds MAX_BARRIERS."""
        rank, kind = event.get("rank", 0), event["kind"]
        if rank not in range(len(self._cluster.members)):
            raise WireError("a message names an unknown rank")
        if kind == "joined":
            self.joined.add(rank)
        elif kind == "gone":
            self.gone.add(rank)
        elif kind == "failed":
            self.failures.setdefault(event["phase"], Failure(event["text"], event["refused"]))
        elif kind == "lost" and rank not in self.gone:
            self.lost.setdefault(rank, event["text"])
            self.failures.setdefault(FORWARD, Failure(event["text"]))
        elif kind == "arrived":
            self._record_arrival(BarrierKey(event["phase"], event["barrier"]), rank, event["data"])
        self._settle_barriers()

    @property
    def is_complete(self) -> bool:
        """Return True if the runs of all members have joined."""
        return len(self.joined) == len(self._cluster.members)

    def is_settled(self, key: BarrierKey) -> bool:
        """Return True if the outcome of a barrier is known."""
        return key in self._outcomes or self._find_failure(key) is not None

    def failure(self, key: BarrierKey) -> Failure | None:
        """Return the failure of a barrier; None if there is none, or if all members arrived before it."""
        return self._outcomes[key] if key in self._outcomes else self._find_failure(key)

    def shared_data(self, key: BarrierKey) -> dict[str, Any]:
        """Return the data shared at a barrier, by host name in the order of ranks."""
        return {self._cluster.members[rank]: data for rank, data in sorted(self._data_by_barrier.get(key, {}).items())}

    def has_arrived(self, key: BarrierKey, rank: int) -> bool:
        """Return True if a member has arrived at a barrier."""
        return rank in self._data_by_barrier.get(key, {})

    def format_missing(self, key: BarrierKey | None) -> str:
        """Return the names of the members that have not arrived at a barrier or, with None, have not joined."""
        present_ranks = self.joined if key is None else self._data_by_barrier.get(key, {}).keys()
        return ", ".join(
            self._cluster.format_member(rank) for rank in range(len(self._cluster.members)) if rank not in present_ranks
        )

    def _record_arrival(self, key: BarrierKey, rank: int, data: Any) -> None:
        if key not in self._data_by_barrier and len(self._data_by_barrier) >= MAX_BARRIERS:
            raise WireError("there are too many barriers")
        self._data_by_barrier.setdefault(key, {}).setdefault(rank, data)

    def _settle_barriers(self) -> None:
        for key, arrivals in self._data_by_barrier.items():
            if key not in self._outcomes:
                failure = self._find_failure(key)
                if len(arrivals) == len(self._cluster.members):
                    self._outcomes[key] = None
                elif failure is not None:
                    self._outcomes[key] = failure

    def _find_failure(self, key: BarrierKey) -> Failure | None:
        """Return the first failure that prevents a barrier from completing; None if there is none."""
        if key.phase in self.failures:
            return self.failures[key.phase]
        arrivals = self._data_by_barrier.get(key, {})
        for rank, text in self.lost.items():
            if rank not in arrivals:
                return Failure(text)
        for rank in sorted(self.gone - arrivals.keys()):
            suffix = f" before barrier '{key.name}'" if key.name else ""
            return Failure(f"{self._cluster.format_member(rank)} ended its run{suffix}")
        return None
