"""A member with the token that violates the protocol is lost for the others, and its messages are limited."""

import socket
from pathlib import Path
from typing import Any

import pytest

from sparkwright.host.cluster import wire
from sparkwright.host.cluster.rendezvous import MAX_BARRIERS
from sparkwright.host.cluster.wire import CLOSED_MESSAGE, ConnectionLost, Session, read_line
from sparkwright.secret import Secret
from tests.runner.cluster.members import SECRET, Group, barrier_task, running_group

FAR_S = 10**9


class HostileMember:
    """A member of a group that sends arbitrary messages."""

    def __init__(self, group: Group, rank: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", group.port), timeout=60)
        line, handshake = wire.answer_greeting(self._line(wire.MAX_HELLO_BYTES), group.cluster(rank), Secret(SECRET))
        self.sock.sendall(line)
        self.session: Session = wire.verify_proof(self._line(wire.MAX_HELLO_BYTES), handshake, Secret(SECRET))

    def send(self, *messages: dict[str, Any]) -> None:
        self.sock.sendall(b"".join(map(self.session.seal, messages)))

    def read_event(self, kind: str) -> dict[str, Any]:
        while (event := self.session.unseal(self._line(wire.MAX_LINE_BYTES)))["kind"] != kind:
            continue
        return event

    def _line(self, most_bytes: int) -> bytes:
        return read_line(self.sock, most_bytes, FAR_S)


def test_member_with_endless_barriers_is_lost(pair: Group) -> None:
    head = pair.begin(0, barrier_task("prepared"))
    head.wait_for_note("waiting for spark2")
    hostile = HostileMember(pair, 1)
    hostile.send({"kind": "join"})
    arrival = {"kind": "arrive", "phase": "forward", "data": {}}
    hostile.send(*({**arrival, "barrier": f"b{n}"} for n in range(MAX_BARRIERS + 10)))
    assert hostile.read_event("lost")["text"] == "lost spark2 (rank 1): there are too many barriers"
    with pytest.raises(ConnectionLost, match=CLOSED_MESSAGE):
        hostile.read_event("never")
    assert "lost spark2 (rank 1): there are too many barriers" in head.recap()["msg"]


def test_repeated_overdue_message_is_answered_once(tmp_path: Path) -> None:
    with running_group(tmp_path, world=3) as three:
        three.begin(0, barrier_task("prepared")).wait_for_note("waiting for")
        hostile = HostileMember(three, 1)
        overdue = {"kind": "overdue", "phase": "forward", "barrier": "", "waited_s": 1.0}
        hostile.send({"kind": "join"}, *[overdue] * 500, {"kind": "bye"})
        kinds = []
        with pytest.raises(ConnectionLost, match=CLOSED_MESSAGE):
            while True:
                kinds.append(hostile.session.unseal(hostile._line(wire.MAX_LINE_BYTES))["kind"])
        assert kinds.count("failed") == 1
