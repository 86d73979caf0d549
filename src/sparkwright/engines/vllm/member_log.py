"""Read the log of one member of a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sparkwright.engines.log.reader import read_log
from sparkwright.engines.log.state import EngineState
from sparkwright.engines.log.text import LogText
from sparkwright.engines.vllm.failures import PEER_FAILURE_PHRASES
from sparkwright.engines.vllm.log import LOG

#: transport between the members; unknown if NCCL does not log it
Transport = Literal["rdma", "sockets", "gloo", "unknown"]
#: readings whose log lines are kept as evidence
EVIDENCE_READINGS = ("rank", "world_size", "intended_rank", "backend", "nccl", "network", "adapters_found", "failure")


@dataclass(frozen=True, slots=True)
class MemberLog:
    """The last start that a member's log records."""

    #: assigned by the group; None until the group exists
    rank: int | None = None
    #: number of ranks in the group; None until the group exists
    world_size: int | None = None
    #: rank in the member's flags, logged before it has joined a group
    intended_rank: int | None = None
    transport: Transport = "unknown"
    network: str = ""
    nccl: str = ""
    version: str = ""
    #: see EngineState
    stage: str = ""
    #: reason why the member exited, one sentence; "" if the log has none
    failure: str = ""
    #: log lines, by reading
    evidence: Mapping[str, str] = field(default_factory=dict)


def parse_member_log(text: LogText) -> MemberLog:
    """Read a member's log from a text, a file or pieces of text."""
    return build_member_log(read_log(text, LOG))


def is_peer_failure(failure: str) -> bool:
    """Return True if a failure was caused by another member."""
    return any(phrase in failure for phrase in PEER_FAILURE_PHRASES)


def build_member_log(state: EngineState) -> MemberLog:
    """Return the member's log from the parsed state of its engine."""
    transport, line = _find_transport(state)
    evidence = {name: state.reading(name).evidence for name in EVIDENCE_READINGS if state.reading(name).evidence}
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
    """Return the transport and its log line: sockets if any channel uses them, since the slowest channel limits all."""
    if state.value("over_sockets"):
        return "sockets", state.reading("over_sockets").evidence
    if state.value("over_rdma"):
        return "rdma", state.reading("over_rdma").evidence
    if state.value("backend") == "gloo" and state.value("rank") is not None:
        return "gloo", state.reading("backend").evidence
    return "unknown", ""
