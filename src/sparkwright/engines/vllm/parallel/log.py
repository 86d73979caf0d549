"""A reader of one member's log: its rank once the group exists, the transport, the stage of its start, and the reason of a
failure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from sparkwright.engines.log.reader import read
from sparkwright.engines.log.state import EngineState
from sparkwright.engines.log.text import Text
from sparkwright.engines.vllm.failures.members import OF_ANOTHER
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


def member(text: Text) -> MemberLog:
    """Read a member's log from a text, a file or pieces of text."""
    return of_state(read(text, LOG))


def of_another(failure: str) -> bool:
    """Return True if a failure was caused by another member."""
    return any(words in failure for words in OF_ANOTHER)


def of_state(state: EngineState) -> MemberLog:
    """Return the member's log from the state of a log that was read already."""
    transport, line = _transport(state)
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


def _transport(state: EngineState) -> tuple[Transport, str]:
    """Return the transport and its log line; one channel over sockets is enough to slow down all."""
    if state.value("over_sockets"):
        return "sockets", state.reading("over_sockets").evidence
    if state.value("over_rdma"):
        return "rdma", state.reading("over_rdma").evidence
    if state.value("backend") == "gloo" and state.value("rank") is not None:
        return "gloo", state.reading("backend").evidence
    return "unknown", ""
