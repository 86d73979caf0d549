"""A member with another time than the head reports the difference and its accuracy."""

import socket
import time
from pathlib import Path

import pytest

from sparkwright.host.cluster import wire
from sparkwright.host.cluster.wire import read_line
from sparkwright.protocol.cluster import describe_clock_offset
from sparkwright.secret import Secret
from tests.runner.cluster.members import SECRET, Group, barrier_task, running_group

FAR_S = 10**9


class SkewedHead:
    """A head with a clock that is some seconds ahead. It lets both members join."""

    def __init__(self, group: Group, ahead_s: float) -> None:
        self.group, self.ahead_s = group, ahead_s
        self.listener = socket.create_server(("127.0.0.1", group.port))

    def accept_members(self) -> socket.socket:
        sock, _ = self.listener.accept()
        nonce = wire.generate_nonce()
        sock.sendall(wire.build_greeting(nonce))
        claim = read_line(sock, wire.MAX_HELLO_BYTES, FAR_S)
        _, proof, session = wire.verify_claim(claim, nonce, self.group.cluster(0), Secret(SECRET))
        sock.sendall(proof)
        while session.unseal(read_line(sock, wire.MAX_LINE_BYTES, FAR_S))["kind"] != "join":
            continue
        now_s = time.time() + self.ahead_s
        for rank in (1, 0):
            sock.sendall(session.seal({"kind": "joined", "rank": rank, "now_s": now_s}))
        self.listener.close()
        return sock


@pytest.mark.parametrize(("ahead_s", "how"), [(90.0, "behind"), (-90.0, "ahead of")])
def test_clock_that_differs_from_the_head_is_reported(tmp_path: Path, ahead_s: float, how: str) -> None:
    with running_group(tmp_path) as pair:
        head = SkewedHead(pair, ahead_s)
        member = pair.begin(1, barrier_task("prepared"))
        with head.accept_members():
            note = member.wait_for_note("the clock is ")
        assert f" s {how} that of spark1 (rank 0) (to within " in note


def test_equal_clocks_are_not_reported(tmp_path: Path) -> None:
    with running_group(tmp_path) as pair:
        members = pair.start(barrier_task("prepared"))
        assert pair.exit_codes() == [0, 0]
        assert not any("clock" in text for member in members for text in member.notes())


@pytest.mark.parametrize(
    ("ahead_s", "clause"),
    [
        ((12.4, 12.6), "12.5 s ahead of that of spark1 (to within 0.1 s)"),
        ((-15.0, -9.0), "12.0 s behind that of spark1 (to within 3.0 s)"),
        ((-0.2, 4.0), ""),  # a slow answer is too inaccurate
        ((0.6, 0.8), ""),
    ],
)
def test_only_a_certain_offset_is_described(ahead_s: tuple[float, float], clause: str) -> None:
    assert describe_clock_offset(ahead_s, "spark1") == clause
