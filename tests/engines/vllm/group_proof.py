"""Judgement of a group by the logs of its members."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sparkwright.engines.log.text import LogText
from sparkwright.engines.vllm.member_log import Transport, is_peer_failure, parse_member_log


@dataclass(frozen=True, slots=True)
class GroupProof:
    """The state of a group according to its members' logs."""

    #: incomplete: a rank is not assigned. failed: a member exited
    verdict: Literal["complete", "incomplete", "failed"]
    sentence: str
    #: assigned ranks, by host
    ranks: Mapping[str, int]
    #: ranks that appear in no log
    missing: tuple[int, ...]
    #: of all members; unknown if they differ
    transport: Transport


def evaluate_group(logs: Mapping[str, LogText], hosts: Sequence[str]) -> GroupProof:
    """Return the proof of a group from its logs, by host. hosts: the members in the order of their ranks."""
    members = {host: parse_member_log(logs[host]) for host in hosts}
    ranks = {host: log.rank for host, log in members.items() if log.rank is not None and log.world_size == len(hosts)}
    missing = tuple(rank for rank in range(len(hosts)) if rank not in ranks.values())
    transports = {log.transport for log in members.values()}
    transport = transports.pop() if len(transports) == 1 else "unknown"
    verdict: Literal["complete", "incomplete", "failed"]
    verdict, sentence = "complete", f"all {len(hosts)} ranks joined."
    # the cause is the failure of a member itself, not its loss of another member
    failures = [(is_peer_failure(log.failure), hosts.index(host)) for host, log in members.items() if log.failure]
    not_joined = [f"rank {rank} ({host})" for rank, host in enumerate(hosts) if ranks.get(host) != rank]
    if failures:
        _, rank = min(failures)
        verdict, sentence = "failed", f"rank {rank} ({hosts[rank]}): {members[hosts[rank]].failure}"
    elif not_joined:
        verdict, sentence = "incomplete", f"not joined: {', '.join(not_joined)}."
    return GroupProof(verdict, sentence, ranks, missing, transport)
