"""Strangers at the head's listener learn nothing, cost little, and keep no member from joining."""

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkwright.host.cluster import wire
from sparkwright.host.cluster.wire import read_line
from sparkwright.protocol.cluster import Cluster
from sparkwright.secret import Secret
from tests.runner.cluster.members import SECRET, Group, Member, barrier_task, running_group, shell_task
from tests.runner.cluster.proxy import open_cable
from tests.waiting import wait_until

STEPS = (barrier_task("prepared", share={"digest": "sha256:aaa"}), shell_task("Go on", "echo on >> said"))
FAR_S = 10**9


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Group]:
    with running_group(tmp_path) as value:
        yield value


def start_head(pair: Group) -> Member:
    """Return the head, which waits for its worker."""
    head = pair.begin(0, *STEPS)
    wait_until(lambda: "waiting for spark2 (rank 1)" in head.notes(), "it waits")
    return head


def connect(pair: Group) -> socket.socket:
    value = socket.create_connection(("127.0.0.1", pair.port), timeout=30)
    value.settimeout(30)
    return value


def assert_goes_on(pair: Group, head: Member) -> None:
    worker = pair.begin(1, *STEPS)
    assert (head.recap()["exit"], worker.recap()["exit"]) == (0, 0)
    assert head.said() == worker.said() == "on\n"


def read_until_closed(sock: socket.socket) -> bytes:
    """Return everything that the other side sends until it hangs up."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            received += data
    sock.close()
    return received


@pytest.mark.parametrize(
    "garbage",
    {
        "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "bytes": bytes(range(256)) + b"\n",
        "deep": b"[" * 900 + b"\n",
        "null": b"null\n",
        "another shape": b'{"rank": "x", "nonce": 5, "proof": []}\n',
    }.values(),
)
def test_garbage_is_dropped_with_a_note(pair: Group, garbage: bytes) -> None:
    head = start_head(pair)
    stranger = connect(pair)
    stranger.sendall(garbage)
    assert b"proof" not in read_until_closed(stranger)
    note = "dropped a connection from 127.0.0.1: it does not use the cluster protocol"
    wait_until(lambda: note in head.notes(), "a note says so")
    assert_goes_on(pair, head)


def test_long_line_is_not_buffered(pair: Group) -> None:
    head = start_head(pair)
    before = _peak_memory_kib(head)
    stranger = connect(pair)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        stranger.sendall(b"x" * 10_000_000)
    stranger.close()
    note = "dropped a connection from 127.0.0.1: a line has more than 1024 bytes"
    wait_until(lambda: note in head.notes(), "a note says so")
    assert _peak_memory_kib(head) - before < 4096
    assert_goes_on(pair, head)


def test_wrong_token_is_dropped_without_a_proof(pair: Group) -> None:
    head = start_head(pair)
    for about in ({"rank": 1}, {"rank": 0}, {"rank": 1, "name": "other"}, {"rank": 5}):
        stranger = connect(pair)
        greeted = read_line(stranger, wire.MAX_HELLO_BYTES, FAR_S)
        cluster = pair.cluster(1)
        named = Cluster(about.get("name", "pair"), 1, cluster.members, cluster.address, cluster.port)
        line, _ = wire.answer_greeting(greeted, named, Secret("ab" * 32))
        stranger.sendall(json.dumps({**json.loads(line), "rank": about["rank"]}).encode() + b"\n")
        assert read_until_closed(stranger) == b""
    wait_until(lambda: "dropped a connection from 127.0.0.1: it has another token" in head.notes(), "a note says so")
    assert_goes_on(pair, head)


def test_member_with_the_token_of_another_deploy_is_rejected(pair: Group) -> None:
    head = start_head(pair)
    other = pair.members[1].start(pair.plan(1, *STEPS, cluster={"join_s": 1.0}), token="ab" * 32)
    recap = other.recap()
    assert (recap["exit"], other.said()) == (5, "")
    assert f"(127.0.0.1 port {pair.port}: connection closed)" in recap["msg"]
    pair.members[1] = Member(other.home.parent / "again", "spark2")
    assert_goes_on(pair, head)


def test_head_without_the_token_is_rejected(pair: Group) -> None:
    """A stranger at the head's address, without the token, gets nothing but a proof for its own nonce."""
    with socket.create_server(("127.0.0.1", pair.port)) as false:
        worker = pair.begin(1, *STEPS, cluster={"join_s": 1.0})
        near, _ = false.accept()
        near.sendall(wire.build_greeting("0" * 64))
        claim = json.loads(read_line(near, wire.MAX_HELLO_BYTES, FAR_S))
        near.sendall(json.dumps({"proof": claim["proof"]}).encode() + b"\n")  # reflected
        assert read_until_closed(near) == b""
        recap = worker.recap()
        assert (recap["exit"], worker.said()) == (5, "")
        assert SECRET not in json.dumps(claim)


def test_replayed_connection_is_rejected(pair: Group, tmp_path: Path) -> None:
    """Replay a message of a first run, by a member with this very token, to a second run."""
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
        wait_until(
            lambda: "dropped a connection from 127.0.0.1: it has another token" in head.notes(), "a note says so"
        )
        assert head.outcome("Meet at prepared") == ("", "")
        assert_goes_on(second, head)


def test_idle_connection_is_dropped(pair: Group) -> None:
    head = start_head(pair)
    assert json.loads(read_until_closed(connect(pair))).keys() == {"hello", "nonce"}
    note = "dropped a connection from 127.0.0.1: no answer within 5 s"
    wait_until(lambda: note in head.notes(), "a note says so")
    assert_goes_on(pair, head)


def test_idle_connections_do_not_block_members(pair: Group) -> None:
    head = start_head(pair)
    idle = [connect(pair) for _ in range(200)]
    assert_goes_on(pair, head)
    notes = [note for note in head.notes() if "dropped" in note or "more connections" in note]
    assert 0 < len(notes) <= 6
    for item in idle:
        item.close()


def _peak_memory_kib(head: Member) -> int:
    """Return the peak memory of the detached runner."""
    status = Path(f"/proc/{head.pid()}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
