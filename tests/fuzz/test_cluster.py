"""Damaged lines between the head of a cluster and its members are read or refused."""

import json
from typing import Any

import pytest

from sparkwright.host.cluster import wire
from sparkwright.host.cluster.rendezvous import EVENT_SHAPES, MESSAGE_SHAPES, ClusterState, validate_message
from sparkwright.host.cluster.wire import MAX_LINE_BYTES, LineSplitter, Session, WireError
from sparkwright.protocol.cluster import Cluster
from sparkwright.protocol.plan import Plan
from sparkwright.secret import Secret
from tests.fuzz.harness import damaged_texts, damaged_values, feed

TOKEN = Secret("5e" * 32)
PAIR = Cluster("pair", 1, ("spark1", "spark2"), "192.168.100.10", 29499)
NONCE = "0f" * 32
BARRIER = {"phase": "forward", "barrier": "all prepared"}
MEMBER_MESSAGES: list[Any] = [
    {"kind": "join"},
    {"kind": "alive"},
    {"kind": "arrive", **BARRIER, "data": {"digest": "sha256:ab", "files": [1, 2.5, None, {"a": True}]}},
    {"kind": "overdue", "phase": "rescue", "barrier": "", "waited_s": 600.0},
    {"kind": "fail", "phase": "forward", "at": "Pull", "text": "no space left", "refused": False},
    {"kind": "bye"},
]
HEAD_MESSAGES: list[Any] = [
    {"kind": "joined", "rank": 1},
    {"kind": "arrived", "rank": 0, **BARRIER, "data": {"digest": "sha256:ab"}},
    {"kind": "failed", "phase": "rescue", "text": "lost spark2 (rank 1)", "refused": True},
    {"kind": "lost", "rank": 1, "text": "silent for 20 s"},
    {"kind": "gone", "rank": 0},
]


def open_sessions() -> tuple[Session, Session]:
    """Return both ends of a connection: the head's and the member's."""
    claim, handshake = wire.answer_greeting(wire.build_greeting(NONCE).strip(), PAIR, TOKEN)
    rank, proof, head = wire.verify_claim(claim.strip(), NONCE, PAIR, TOKEN)
    assert rank == 1
    return head, wire.verify_proof(proof.strip(), handshake, TOKEN)


def test_lines_before_authentication() -> None:
    claim, handshake = wire.answer_greeting(wire.build_greeting(NONCE).strip(), PAIR, TOKEN)
    _, proof, _ = wire.verify_claim(claim.strip(), NONCE, PAIR, TOKEN)
    seeds = [wire.build_greeting(NONCE), claim, proof]

    def read(data: bytes) -> None:
        for line in LineSplitter().feed(data):
            for reader in (
                lambda line=line: wire.answer_greeting(line, PAIR, TOKEN),
                lambda line=line: wire.verify_claim(line, NONCE, PAIR, TOKEN),
                lambda line=line: wire.verify_proof(line, handshake, TOKEN),
            ):
                try:
                    reader()
                except WireError:
                    continue

    feed(read, damaged_texts(seeds), refuses=(WireError,))


def test_damaged_lines_of_a_session_are_not_authentic() -> None:
    head, member = open_sessions()
    sealed = [member.seal(item) for item in MEMBER_MESSAGES]
    first = sealed[0].strip()

    def read(data: bytes) -> None:
        for line in LineSplitter(MAX_LINE_BYTES).feed(data):
            if line == first and head._received_count == 0:
                continue
            assert head.unseal(line) is None, "a damaged or repeated line was accepted"

    feed(read, damaged_texts(sealed), refuses=(WireError,))


def test_messages_as_values() -> None:
    def validate(message: Any) -> None:
        if isinstance(message, dict):
            validate_message(message, MESSAGE_SHAPES)

    def apply(message: Any) -> None:
        state = ClusterState(PAIR)
        if isinstance(message, dict):
            for event in (message, *HEAD_MESSAGES):
                state.apply(validate_message(event, EVENT_SHAPES))
            json.dumps(state.shared_data(next(iter(state._data_by_barrier))))

    feed(validate, damaged_values(MEMBER_MESSAGES), refuses=(WireError,))
    feed(apply, damaged_values(HEAD_MESSAGES), refuses=(WireError,))


def test_cluster_of_a_plan() -> None:
    def read(value: Any) -> None:
        if isinstance(value, dict):
            plan = Plan.from_json(value)
            assert plan.cluster is None or plan.cluster.members[plan.cluster.rank] == plan.host

    seed = Plan("r", "spark2", "Deploy", (), cluster=PAIR).to_json()
    feed(read, damaged_values([seed]), refuses=(ValueError, TypeError))


def test_repeated_reflected_and_foreign_lines_are_refused() -> None:
    head, member = open_sessions()
    first, second = member.seal(MEMBER_MESSAGES[0]).strip(), member.seal(MEMBER_MESSAGES[1]).strip()
    assert head.unseal(first) == MEMBER_MESSAGES[0]
    reflected = head.seal(MEMBER_MESSAGES[1]).strip()
    for line in (first, reflected):
        with pytest.raises(WireError):
            head.unseal(line)
    assert head.unseal(second) == MEMBER_MESSAGES[1]
    other_head, _ = open_sessions()
    with pytest.raises(WireError, match="not authentic"):
        other_head.unseal(first)
