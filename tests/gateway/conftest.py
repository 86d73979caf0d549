"""Servers behind the gateways of single tests."""

from collections.abc import Iterator

import pytest

from tests.gateway.servers import StreamServer


@pytest.fixture
def server() -> Iterator[StreamServer]:
    with StreamServer("one") as server:
        yield server


@pytest.fixture
def other() -> Iterator[StreamServer]:
    with StreamServer("two") as server:
        yield server
