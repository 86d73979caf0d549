"""The URL of a container's server, from its published ports."""

from typing import Any

import pytest

from sparkwright.host.containers import containers


@pytest.mark.parametrize(
    ("address", "host"),
    [("", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("10.0.0.7", "10.0.0.7"), ("::1", "[::1]")],
)
def test_the_url_has_the_address_of_the_published_port(address: str, host: str) -> None:
    bindings: dict[str, Any] = {"8000/tcp": [{"HostIp": address, "HostPort": "8000"}]}
    assert containers.url_of({"HostConfig": {"PortBindings": bindings}}) == f"http://{host}:8000"
    assert containers.url_of({"HostConfig": {"PortBindings": None}}) == ""
