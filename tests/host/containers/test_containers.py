"""The URL of a container's server, from its published ports."""

from typing import Any

import pytest

from sparkwright.host.containers import containers


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://127.0.0.1:8000"),
        ("10.0.0.7", "http://10.0.0.7:8000"),
        ("::1", "http://[::1]:8000"),
        ("fd00::7", "http://[fd00::7]:8000"),
    ],
)
def test_the_url_has_the_address_of_the_published_port(address: str, url: str) -> None:
    bindings: dict[str, Any] = {"8000/tcp": [{"HostIp": address, "HostPort": "8000"}]}
    assert containers.url_of({"HostConfig": {"PortBindings": bindings}}) == url
    assert containers.url_of({"HostConfig": {"PortBindings": None}}) == ""
