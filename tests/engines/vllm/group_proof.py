"""Judgement of a group's logs: the members' ranks prove that the group is complete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparkwright.engines.log.text import LogText
from sparkwright.engines.vllm.member_log import MemberLog, Transport, is_peer_failure, member

#: incomplete: a rank is not assigned. contradictory: the logs belong to different groups. failed: a member exited.
#: unknown: a log is missing, and the others have no problem
Verdict = Literal["complete", "incomplete", "contradictory", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class GroupProof:
    """The state of a group according to its members' logs."""

    verdict: Verdict
    sentence: str
    #: expected number of ranks
    world_size: int
    #: assigned ranks, by host
    ranks: Mapping[str, int]
    #: ranks that appear in no log
    missing: tuple[int, ...] = ()
    #: hosts without a log
    unread: tuple[str, ...] = ()
    #: the slowest of all members
    transport: Transport = "unknown"
    #: by host
    members: Mapping[str, MemberLog] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if the group is proved."""
        return self.verdict == "complete"


def evaluate_group(logs: Mapping[str, LogText | None], hosts: Sequence[str]) -> GroupProof:
    """Return the proof of a group from its logs.

    Args:
        logs: by host; None, or no entry, if the log is unavailable.
        hosts: the members in the order of their ranks.
    """
    return evaluate_members({host: member(text) for host in hosts if (text := logs.get(host)) is not None}, hosts)


def evaluate_members(members: Mapping[str, MemberLog], hosts: Sequence[str]) -> GroupProof:
    """Return the proof of a group from parsed logs, by host."""
    ranks = {host: member.rank for host, member in members.items() if member.rank is not None and host in hosts}
    unread = tuple(host for host in hosts if host not in members)
    missing = tuple(rank for rank in range(len(hosts)) if rank not in ranks.values())
    verdict, sentence = _evaluate(members, hosts, ranks, unread)
    return GroupProof(verdict, sentence, len(hosts), ranks, missing, unread, _worst_transport(members), members)


def _evaluate(
    members: Mapping[str, MemberLog], hosts: Sequence[str], ranks: Mapping[str, int], unread: Sequence[str]
) -> tuple[Verdict, str]:
    if failed_host := _find_failed_host(members, hosts):
        return "failed", f"rank {hosts.index(failed_host)} ({failed_host}): {members[failed_host].failure}"
    if contradiction := _find_contradiction(members, hosts, ranks):
        return "contradictory", contradiction
    waiting = [host for host in hosts if host in members and host not in ranks]
    if waiting:
        ranks_text = ", ".join(f"rank {hosts.index(host)} ({host})" for host in waiting)
        return "incomplete", f"not joined: {ranks_text}."
    if unread:
        ranks_text = ", ".join(f"rank {hosts.index(host)} ({host})" for host in unread)
        return "unknown", f"no log of {ranks_text}."
    return "complete", f"all {len(hosts)} ranks joined."


def _find_failed_host(members: Mapping[str, MemberLog], hosts: Sequence[str]) -> str:
    """Return the host of the first member with a failure of its own, else of the first that lost another; "" if none failed."""
    failed = [host for host in hosts if host in members and members[host].failure]
    own_failures = (host for host in failed if not is_peer_failure(members[host].failure))
    return next(own_failures, next(iter(failed), ""))


def _find_contradiction(members: Mapping[str, MemberLog], hosts: Sequence[str], ranks: Mapping[str, int]) -> str:
    """Return the first sign that the logs are not from one group of these hosts, as a sentence; "" if there is none."""
    for host, rank in ranks.items():
        world = members[host].world_size
        if world != len(hosts):
            return f"{host} is in a group of {world}, not {len(hosts)}."
        if hosts.index(host) != rank:
            return f"{host} is rank {rank}, not {hosts.index(host)}."
    return ""


def _worst_transport(members: Mapping[str, MemberLog]) -> Transport:
    """Return sockets if any member uses them, the common transport if all logs agree, else unknown."""
    transports = {member.transport for member in members.values()}
    if "sockets" in transports:
        return "sockets"
    return transports.pop() if len(transports) == 1 else "unknown"
