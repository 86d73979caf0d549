"""Waiting for sockets in a process with many open files, for example with a large fleet."""

import fcntl
import os
import socket
from collections.abc import Iterator

import pytest

from sparkwright.ready import wait_for_readable

MIN_HIGH_DESCRIPTOR = 2000  # above the limit of `select.select`


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of a connection; the first has a high descriptor."""
    near, far = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(near, fcntl.F_DUPFD, MIN_HIGH_DESCRIPTOR))
    near.close()
    with high, far:
        yield high, far


def test_data_and_the_end_of_a_connection_are_readable(connection: tuple[socket.socket, socket.socket]) -> None:
    near, far = connection
    assert wait_for_readable([near]) == []
    far.send(b"x")
    assert wait_for_readable([near], 60) == [near]
    assert near.recv(8) == b"x"
    far.close()
    assert wait_for_readable([near], 60) == [near] and near.recv(8) == b""


def test_writable_socket_ends_the_wait(connection: tuple[socket.socket, socket.socket]) -> None:
    near, far = connection
    assert wait_for_readable([near], 60, writers=[near]) == []
    far.send(b"x")
    assert wait_for_readable([near, far], 60, writers=[near]) == [near]


def test_pipe_is_given_by_its_descriptor() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb"), os.fdopen(write_end, "wb", buffering=0) as file:
        assert wait_for_readable([read_end]) == []
        file.write(b"x")
        assert wait_for_readable([read_end], 60) == [read_end]


def test_closed_socket_is_an_error(connection: tuple[socket.socket, socket.socket]) -> None:
    near, _ = connection
    near.close()
    with pytest.raises(ValueError, match="file descriptor"):
        wait_for_readable([near])
