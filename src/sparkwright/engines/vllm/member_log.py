"""The proof of a group: a reader of one member's log, and the judgement of the logs of all members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.log.state import EngineState
from sparkwright.engines.log.text import LogText
from sparkwright.engines.vllm.failures import PEER_FAILURE_PHRASES
from sparkwright.engines.vllm.log import LOG

#: transport of the members' traffic. unknown: NCCL does not log it
Transport = Literal["rdma", "sockets", "gloo", "unknown"]
#: readings of a member
READINGS = ("rank", "world_size", "intended_rank", "backend", "nccl", "network", "adapters_found", "failure")


@dataclass(frozen=True, slots=True)
class MemberLog:
    """The last start in a member's log."""

    #: assigned by the group; None until it exists
    rank: int | None = None
    #: as the group reported it; None until it exists
    world_size: int | None = None
    #: rank that the member was started with, which proves nothing
    intended_rank: int | None = None
    transport: Transport = "unknown"
    network: str = ""
    nccl: str = ""
    version: str = ""
    #: see EngineState
    stage: str = ""
    #: reason why the member ended, one sentence; "" if the log holds none
    failure: str = ""
    #: log line of each reading
    evidence: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return {**asdict(self), "evidence": dict(self.evidence)}


def member(text: LogText) -> MemberLog:
    """Read a member's log from a text, a file or pieces of text."""
    return build_member_log(read_log(text, LOG))


def is_peer_failure(failure: str) -> bool:
    """Return True if a failure was caused by another member."""
    return any(words in failure for words in PEER_FAILURE_PHRASES)


def build_member_log(state: EngineState) -> MemberLog:
    """Return the member's log from the state of a log that was read already."""
    transport, line = _find_transport(state)
    evidence = {name: state.reading(name).evidence for name in READINGS if state.reading(name).evidence}
    return MemberLog(
        rank=state.value("rank"),
        world_size=state.value("world_size"),
        intended_rank=state.value("intended_rank"),
        transport=transport,
        network=state.value("network") or "",
        nccl=state.value("nccl") or "",
        version=state.value("version") or "",
        stage=state.stage,
        failure=state.failure.value or "",
        evidence={**evidence, **({"transport": line} if line else {})},
    )


def _find_transport(state: EngineState) -> tuple[Transport, str]:
    """Return the transport and its log line; one channel over sockets is enough to slow down all."""
    if state.value("over_sockets"):
        return "sockets", state.reading("over_sockets").evidence
    if state.value("over_rdma"):
        return "rdma", state.reading("over_rdma").evidence
    if state.value("backend") == "gloo" and state.value("rank") is not None:
        return "gloo", state.reading("backend").evidence
    return "unknown", ""


#: complete: proved. incomplete: a rank is not assigned yet, or never will be. contradictory: the logs are of more than one group.
#: failed: a member ended. unknown: a log is missing, and nothing else is wrong
Verdict = Literal["complete", "incomplete", "contradictory", "failed", "unknown"]


@dataclass(frozen=True, slots=True)
class GroupProof:
    """The state of a group, as its members' logs prove it."""

    verdict: Verdict
    sentence: str
    #: expected number of ranks
    world_size: int
    #: assigned ranks, by host
    ranks: Mapping[str, int]
    #: ranks that no log has
    missing: tuple[int, ...] = ()
    #: hosts without a log
    unread: tuple[str, ...] = ()
    #: the worst of all members'
    transport: Transport = "unknown"
    #: each member's log, by host
    members: Mapping[str, MemberLog] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """True if the group is proved."""
        return self.verdict == "complete"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "world_size": self.world_size,
            "ranks": dict(self.ranks),
            "missing": list(self.missing),
            "unread": list(self.unread),
            "transport": self.transport,
            "members": {host: member.to_json() for host, member in self.members.items()},
        }


def evaluate_group(logs: Mapping[str, LogText | None], hosts: Sequence[str]) -> GroupProof:
    """Return the proof of a group from its logs.

    Args:
        logs: by host; a missing log or None is not known.
        hosts: the members in the order of their ranks.
    """
    return evaluate_members({host: member(text) for host in hosts if (text := logs.get(host)) is not None}, hosts)


def evaluate_members(members: Mapping[str, MemberLog], hosts: Sequence[str]) -> GroupProof:
    """Return the proof of a group from member logs that were read already."""
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
    """Return the member whose failure explains most: one that failed by itself, else one that lost another; "" for none."""
    failed = [host for host in hosts if host in members and members[host].failure]
    own_failures = (host for host in failed if not is_peer_failure(members[host].failure))
    return next(own_failures, next(iter(failed), ""))


def _find_contradiction(members: Mapping[str, MemberLog], hosts: Sequence[str], ranks: Mapping[str, int]) -> str:
    """Return a fact that contradicts a single group of these hosts, as a sentence; "" for none."""
    for host, rank in ranks.items():
        world = members[host].world_size
        if world != len(hosts):
            return f"{host} is in a group of {world}, not {len(hosts)}."
        if hosts.index(host) != rank:
            return f"{host} is rank {rank}, not {hosts.index(host)}."
    return ""


def _worst_transport(members: Mapping[str, MemberLog]) -> Transport:
    """Return the transport of the group: sockets if any member has them, rdma only if every log reports it."""
    transports = {member.transport for member in members.values()}
    if "sockets" in transports:
        return "sockets"
    return transports.pop() if len(transports) == 1 else "unknown"
