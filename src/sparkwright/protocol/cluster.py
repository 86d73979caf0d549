"""The cluster of a plan: its members by rank, where their runs meet, and the check of a rank's place."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.secret import Secret
from sparkwright.trust import shapes
from sparkwright.trust.names import PATH_COMPONENT

#: the secret that is sent with each plan of one deploy: 32 random bytes, as hexadecimal digits
TOKEN_SECRET = "CLUSTER_TOKEN"
MEMBER_COUNTS = range(2, 65)
#: a member is lost after this many missed heartbeats
MAX_MISSED_HEARTBEATS = 4
#: larger differences between clocks are reported, seconds: the members' logs and histories can't be compared then
MAX_CLOCK_OFFSET_S = 1.0
_ADDRESS = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}")


def _address(value: Any) -> str:
    """Shape of the IP address of one machine, as it is written."""
    fits = isinstance(value, str) and _ADDRESS.fullmatch(value) and value.strip("0.:")
    if not fits or ("." in value and max(map(int, value.split("."))) > 255):
        raise ValueError("is not an IP address")
    return str(value)


def _members(value: Any) -> tuple[str, ...]:
    """Shape of the names of hosts, each of them once."""
    members = tuple(shapes.validate(value, [PATH_COMPONENT], ""))
    if len(members) not in MEMBER_COUNTS or len(set(members)) != len(members):
        raise ValueError("are not 2 to 64 hosts, each of them once")
    return members


#: how long the runs of a deploy wait for each other to join, seconds; all plans are sent within that time
DEFAULT_JOIN_TIMEOUT_S = 120.0
#: how long a run that has joined waits for the others at a barrier, seconds: one of them may download meanwhile
BARRIER_TIMEOUT_S = 600.0


def _integer(low: int, high: int) -> Any:
    """Return the shape of an integer within bounds."""
    return lambda value: shapes.number_between(low, high)(shapes.integer(value))


_SHAPE = {
    "name": PATH_COMPONENT,
    "rank": _integer(0, MEMBER_COUNTS[-1] - 1),
    "members": _members,
    "address": _address,
    "port": _integer(1, 65535),
    "join_s": shapes.OptionalField(shapes.number_between(0.1, 86_400), DEFAULT_JOIN_TIMEOUT_S),
    "beat_s": shapes.OptionalField(shapes.number_between(0.05, 60), 5.0),
}


def new_token() -> Secret:
    """Return a new token, by which the members' runs prove to each other that they belong to one deploy."""
    return Secret(os.urandom(32).hex())


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster of a plan."""

    #: of the cluster
    name: str
    #: of this plan's host
    rank: int
    #: names of hosts by rank; rank 0 is the head
    members: tuple[str, ...]
    #: where the head's runner listens, on the hosts' own network
    address: str
    #: where the head's runner listens
    port: int
    #: how long to wait for the runs of all members, seconds
    join_s: float = DEFAULT_JOIN_TIMEOUT_S
    #: seconds between two heartbeats; a member that is silent for MAX_MISSED_HEARTBEATS times as long is lost
    beat_s: float = 5.0

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON; `from_json` is its inverse."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Cluster:
        """Return the cluster of plain JSON. Raises ValueError if it is not valid."""
        fields = shapes.validate(data, _SHAPE, "cluster")
        if unknown := fields.keys() - _SHAPE.keys():
            raise ValueError(f"cluster has no `{min(unknown)}`")
        if fields["rank"] >= len(fields["members"]):
            raise ValueError("cluster has no member of its rank")
        return cls(**fields)

    def format_member(self, rank: int) -> str:
        """Return a member as a sentence names it: spark2 (rank 1)."""
        return f"{self.members[rank]} (rank {rank})"


def describe_wrong_rank(rank: int, world: int | None, expected_rank: int, expected_world: int | None) -> str:
    """Return what is wrong with the place that the group gave a rank; empty for nothing. expected_world: None if unknown."""
    if rank == expected_rank and expected_world in (None, world):
        return ""
    return (
        f"it is rank {rank} of {world}, not {expected_rank} of {world if expected_world is None else expected_world}."
    )


def describe_clock_offset(ahead_s: tuple[float, float], other: str) -> str:
    """Return the clause that two clocks differ; empty while they may agree to a second. ahead_s: the least and the most."""
    least_s, most_s = ahead_s
    if least_s <= MAX_CLOCK_OFFSET_S and most_s >= -MAX_CLOCK_OFFSET_S:
        return ""
    off_s, within_s = abs(least_s + most_s) / 2, (most_s - least_s) / 2
    return f"{off_s:.1f} s {'ahead of' if least_s > 0 else 'behind'} that of {other} (to within {max(within_s, 0.1):.1f} s)"


def describe_socket_traffic(rank: int) -> str:
    """Return the sentence about a rank whose traffic goes over sockets."""
    return f"rank {rank} reaches the others over sockets, not RDMA: several times slower."
