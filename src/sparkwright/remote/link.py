"""The interface of a link to a host, and the function that opens the right kind of link."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event
from sparkwright.secret import Secret

#: kind of requests that a command sends: queries, plans, or plans whose tasks use the Docker Engine. It determines only what the
#: host's runner imports while the laptop is still planning
RequestKind = Literal["light", "plan", "engine"]
#: interval after which a waiting thread gets the GIL. With Python's default of 5 ms, each of the many short steps of an ssh
#: handshake would wait that long for the planning thread
SWITCH_INTERVAL_S = 0.0005


class Link(Protocol):
    """A connection to a host, used for all requests of a command."""

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        """Send a request to the host's runner and yield its events. Raises Unreachable if the connection is lost."""

    def wait_until_connected(self) -> None:
        """Wait for the connection. Raises Unreachable."""

    def close(self) -> None:
        """Close the connection. Runs on the host continue."""


def open_link(host: Host, request_kind: RequestKind = "engine") -> Link:
    """Open the kind of link that a host's `connection` names. An ssh link starts connecting in the background.

    Args:
        request_kind: kind of the requests that will follow.
    """
    if host.connection == "ssh":
        from sparkwright.remote.ssh import ssh_config

        sys.setswitchinterval(SWITCH_INTERVAL_S)
        ssh_config.start_resolving(host)  # in a separate process, while this one imports
        from sparkwright.remote.ssh.ssh_link import SshLink

        return SshLink(host, request_kind)
    from sparkwright.remote.local import LocalLink

    return LocalLink(host)
