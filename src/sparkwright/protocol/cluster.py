"""The cluster of a plan: its members by rank, and the address at which their runs synchronize."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, dataclass
from typing import Any

from sparkwright.secret import Secret
from sparkwright.trust import shapes
from sparkwright.trust.names import PATH_COMPONENT

#: name of the secret that is sent with each of a deploy's plans
TOKEN_SECRET = "CLUSTER_TOKEN"
MEMBER_COUNTS = range(2, 65)
#: number of missed heartbeats after which a member counts as lost
MAX_MISSED_HEARTBEATS = 4
#: larger differences between clocks are reported, because times in the members' logs are not comparable
MAX_CLOCK_OFFSET_S = 1.0
_ADDRESS_PATTERN = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}")
#: time that a run waits for the other members' runs to join; all plans must be sent within this time
DEFAULT_JOIN_TIMEOUT_S = 120.0
#: time that a run waits at a barrier after all have joined, e.g. for a member that is still downloading
BARRIER_TIMEOUT_S = 600.0


def _address(value: Any) -> str:
    """Shape of a machine's IP address; 0.0.0.0 and :: are refused."""
    is_address = isinstance(value, str) and _ADDRESS_PATTERN.fullmatch(value) and value.strip("0.:")
    if not is_address or ("." in value and max(map(int, value.split("."))) > 255):
        raise ValueError("is not an IP address")
    return str(value)


def _members(value: Any) -> tuple[str, ...]:
    """Shape of a list of distinct host names."""
    members = tuple(shapes.validate(value, [PATH_COMPONENT], ""))
    if len(members) not in MEMBER_COUNTS or len(set(members)) != len(members):
        raise ValueError("are not 2 to 64 different hosts")
    return members


def _integer(low: int, high: int) -> Any:
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
    """Return a new token, by which the members' runs authenticate each other: 32 random bytes as hexadecimal digits."""
    return Secret(os.urandom(32).hex())


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster of a plan."""

    name: str
    #: rank of the plan's host
    rank: int
    #: host names by rank; rank 0 is the head
    members: tuple[str, ...]
    #: address and port of the head's runner, on the network between the hosts
    address: str
    port: int
    #: time to wait for the runs of all members
    join_s: float = DEFAULT_JOIN_TIMEOUT_S
    #: time between heartbeats; a member counts as lost after MAX_MISSED_HEARTBEATS of these intervals without one
    beat_s: float = 5.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Cluster:
        """Rebuild a cluster from the output of `to_json`. Raises ValueError if the data is invalid."""
        fields = shapes.validate(data, _SHAPE, "cluster")
        if unknown := fields.keys() - _SHAPE.keys():
            raise ValueError(f"cluster has no `{min(unknown)}`")
        if fields["rank"] >= len(fields["members"]):
            raise ValueError("cluster has no member of its rank")
        return cls(**fields)

    def format_member(self, rank: int) -> str:
        """Return a member's host name and rank: "spark2 (rank 1)"."""
        return f"{self.members[rank]} (rank {rank})"


def describe_wrong_rank(rank: int, world_size: int | None, expected_rank: int, expected_world_size: int | None) -> str:
    """Describe an unexpected rank or number of ranks; empty if both are as expected. expected_world_size: None if unknown."""
    if rank == expected_rank and expected_world_size in (None, world_size):
        return ""
    shown_size = world_size if expected_world_size is None else expected_world_size
    return f"it is rank {rank} of {world_size}, not {expected_rank} of {shown_size}."


def describe_clock_offset(lead_bounds_s: tuple[float, float], other_host: str) -> str:
    """Describe a clock's offset from another host's clock; empty unless it is certain to exceed MAX_CLOCK_OFFSET_S.

    lead_bounds_s: lower and upper bound of the clock's lead over the other host's.
    """
    min_s, max_s = lead_bounds_s
    if min_s <= MAX_CLOCK_OFFSET_S and max_s >= -MAX_CLOCK_OFFSET_S:
        return ""
    offset_s, error_s = abs(min_s + max_s) / 2, (max_s - min_s) / 2
    return f"{offset_s:.1f} s {'ahead of' if min_s > 0 else 'behind'} that of {other_host} (to within {max(error_s, 0.1):.1f} s)"


def describe_socket_traffic(rank: int) -> str:
    """Describe a rank whose traffic goes over sockets instead of RDMA."""
    return f"rank {rank} reaches the others over sockets, not RDMA: several times slower."
