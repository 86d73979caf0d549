"""Sockets of a process that has many open: a test run, a laptop with a large fleet."""

import fcntl
import os
import socket
from collections.abc import Iterator

import pytest

from sparkwright.ready import wait_for_readable

MIN_HIGH_DESCRIPTOR = 2000  # more than `select.select` takes


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection; the first has a high descriptor."""
    near, far = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(near, fcntl.F_DUPFD, MIN_HIGH_DESCRIPTOR))
    near.close()
    with high, far:
        yield high, far


def test_what_has_arrived_is_seen_and_so_is_the_end(connection: tuple[socket.socket, socket.socket]) -> None:
    near, far = connection
    assert wait_for_readable([near]) == []
    far.send(b"x")
    assert wait_for_readable([near], 60) == [near]
    assert near.recv(8) == b"x"
    far.close()
    assert wait_for_readable([near], 60) == [near] and near.recv(8) == b""


def test_one_that_takes_more_ends_the_wait_and_has_nothing_to_read(
    connection: tuple[socket.socket, socket.socket],
) -> None:
    near, far = connection
    assert wait_for_readable([near], 60, writers=[near]) == []
    far.send(b"x")
    assert wait_for_readable([near, far], 60, writers=[near]) == [near]


def test_a_pipe_by_its_number() -> None:
    out, into = os.pipe()
    with os.fdopen(out, "rb"), os.fdopen(into, "wb", buffering=0) as file:
        assert wait_for_readable([out]) == []
        file.write(b"x")
        assert wait_for_readable([out], 60) == [out]


def test_a_closed_one_is_an_error(connection: tuple[socket.socket, socket.socket]) -> None:
    near, _ = connection
    near.close()
    with pytest.raises(ValueError, match="file descriptor"):
        wait_for_readable([near])
