"""The interface of a link to a host, and the choice of its kind."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

from sparkwright.project.inventory.host import Host
from sparkwright.protocol.events import Event
from sparkwright.secret import Secret

#: the kind of a command's requests: a short question, a plan, a plan with tasks that use the Docker Engine. It decides only the
#: imports of the runner there while the laptop still plans.
Need = Literal["light", "plan", "engine"]
#: how long the planning thread may keep the interpreter while a connection's thread wants it: with Python's own 5 ms each of
#: the handshake's many short steps waits that long
SWITCH_S = 0.0005


class Link(Protocol):
    """A connection to a host, kept for the length of a command."""

    def request(self, header: dict[str, Any], secrets: Mapping[str, Secret]) -> Iterator[Event]:
        """Send a request to the host's runner and yield its events. Raises Unreachable if the answer breaks off."""

    def ready(self) -> None:
        """Wait for the connection. Raises Unreachable."""

    def close(self) -> None:
        """Close the connection. Runs on the host continue."""


def open_link(host: Host, need: Need = "engine") -> Link:
    """Return the link for a host's `connection`. Connecting begins at once, in the background.

    need: the kind of requests to come.
    """
    if host.connection == "ssh":
        from sparkwright.remote.ssh import paramiko_version, ssh_config

        sys.setswitchinterval(SWITCH_S)
        ssh_config.begin(host)  # a process of its own, while this one imports
        with paramiko_version.by_folder():
            from sparkwright.remote.ssh.ssh_link import SshLink

        return SshLink(host, need)
    from sparkwright.remote.local import LocalLink

    return LocalLink(host)
