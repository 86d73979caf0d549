"""Unknown clients at the head's listener learn nothing, use few resources, and keep no member from joining."""

import contextlib
import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from sparkwright.host.cluster import wire
from sparkwright.host.cluster.wire import read_line
from sparkwright.secret import Secret
from tests.runner.cluster.members import SECRET, Group, Member, barrier_task, running_group, write_task
from tests.runner.cluster.proxy import open_cable

STEPS = (barrier_task("prepared", share={"digest": "sha256:aaa"}), write_task("done"))
FAR_S = 10**9
ANOTHER_TOKEN = "dropped a connection from 127.0.0.1: it has another token"


def start_head(pair: Group) -> Member:
    head = pair.begin(0, *STEPS)
    head.wait_for_note("waiting for spark2 (rank 1)")
    return head


def connect(pair: Group) -> socket.socket:
    value = socket.create_connection(("127.0.0.1", pair.port), timeout=30)
    value.settimeout(30)
    return value


def assert_worker_joins(pair: Group, head: Member) -> None:
    worker = pair.begin(1, *STEPS)
    assert pair.exit_codes() == [0, 0]
    assert head.written() == worker.written() == "done\n"


def read_until_closed(sock: socket.socket) -> bytes:
    """Return everything that the other side sends until it closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            received += data
    sock.close()
    return received


@pytest.mark.parametrize(
    "garbage",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", id="http"),
        pytest.param(bytes(range(256)) + b"\n", id="bytes"),
        pytest.param(b"[" * 900 + b"\n", id="nested JSON"),
        pytest.param(b"null\n", id="null"),
        pytest.param(b'{"rank": "x", "nonce": 5, "proof": []}\n', id="wrong types"),
    ],
)
def test_garbage_is_dropped_with_a_note(pair: Group, garbage: bytes) -> None:
    head = start_head(pair)
    stranger = connect(pair)
    stranger.sendall(garbage)
    assert b"proof" not in read_until_closed(stranger)
    head.wait_for_note("dropped a connection from 127.0.0.1: it does not use the cluster protocol")
    assert_worker_joins(pair, head)


def test_long_line_is_not_buffered(pair: Group) -> None:
    head = start_head(pair)
    before = _peak_memory_kib(head)
    stranger = connect(pair)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stranger.sendall(b"x" * 10_000_000)
    stranger.close()
    head.wait_for_note("dropped a connection from 127.0.0.1: a line has more than 1024 bytes")
    assert _peak_memory_kib(head) - before < 4096
    assert_worker_joins(pair, head)


def test_wrong_token_is_dropped_without_a_proof(pair: Group) -> None:
    head = start_head(pair)
    for rank, name in ((1, "pair"), (0, "pair"), (1, "other"), (5, "pair")):
        stranger = connect(pair)
        greeting = read_line(stranger, wire.MAX_HELLO_BYTES, FAR_S)
        line, _ = wire.answer_greeting(greeting, replace(pair.cluster(1), name=name), Secret("ab" * 32))
        stranger.sendall(json.dumps({**json.loads(line), "rank": rank}).encode() + b"\n")
        assert read_until_closed(stranger) == b""
    head.wait_for_note(ANOTHER_TOKEN)
    assert_worker_joins(pair, head)


def test_member_with_the_token_of_another_deploy_is_rejected(pair: Group) -> None:
    head = start_head(pair)
    other = pair.members[1].start(pair.plan(1, *STEPS, cluster={"join_s": 1.0}), token="ab" * 32)
    recap = other.recap()
    assert (recap["exit"], other.written()) == (5, "")
    assert f"(127.0.0.1 port {pair.port}: connection closed)" in recap["msg"]
    pair.members[1] = Member(other.home.parent / "again", "spark2")
    assert_worker_joins(pair, head)


def test_head_without_the_token_is_rejected(pair: Group) -> None:
    """A client without the token at the head's address gets only a proof for its own nonce."""
    with socket.create_server(("127.0.0.1", pair.port)) as false_head:
        worker = pair.begin(1, *STEPS, cluster={"join_s": 1.0})
        near, _ = false_head.accept()
        near.sendall(wire.build_greeting("0" * 64))
        claim = json.loads(read_line(near, wire.MAX_HELLO_BYTES, FAR_S))
        near.sendall(json.dumps({"proof": claim["proof"]}).encode() + b"\n")  # reflected
        assert read_until_closed(near) == b""
        recap = worker.recap()
        assert (recap["exit"], worker.written()) == (5, "")
        assert SECRET not in json.dumps(claim)


def test_replayed_connection_is_rejected(pair: Group, tmp_path: Path) -> None:
    """A message that a member with the same token sent to another run is replayed."""
    with open_cable(pair.port) as link:
        head = pair.begin(0, *STEPS)
        worker = pair.begin(1, *STEPS, cluster={"port": link.port})
        assert (head.recap()["exit"], worker.recap()["exit"]) == (0, 0)
        recording = next(bytes(item) for item in link.recorded if b"arrive" in item)
    with running_group(tmp_path / "second", port=pair.port) as second:
        head = start_head(second)
        stranger = connect(second)
        stranger.sendall(recording)
        assert b"proof" not in read_until_closed(stranger)
        head.wait_for_note(ANOTHER_TOKEN)
        assert head.outcome("Meet at prepared") == ("", "")
        assert_worker_joins(second, head)


def test_idle_connection_is_dropped(pair: Group) -> None:
    head = start_head(pair)
    assert json.loads(read_until_closed(connect(pair))).keys() == {"hello", "nonce"}
    head.wait_for_note("dropped a connection from 127.0.0.1: no answer within 5 s")
    assert_worker_joins(pair, head)


def test_idle_connections_do_not_block_members(pair: Group) -> None:
    head = start_head(pair)
    idle = [connect(pair) for _ in range(200)]
    assert_worker_joins(pair, head)
    notes = [note for note in head.notes() if "dropped" in note or "more connections" in note]
    assert 0 < len(notes) <= 6
    for item in idle:
        item.close()


def _peak_memory_kib(head: Member) -> int:
    status = Path(f"/proc/{head.pid()}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
