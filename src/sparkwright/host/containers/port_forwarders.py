"""Docker's port forwarders, one docker-proxy process per published port.

After a power loss during `docker start`, Docker Engine 20.10 can restart with a forwarder for a container that never ran. No
container publishes its port, so `docker rm -f` does not free it; a restart of Docker does (observed with 20.10.24).

A forwarder's command line contains its ports (moby, libnetwork/portmapper): -proto tcp -host-ip 0.0.0.0 -host-port 8000
-container-ip 172.17.0.2 -container-port 8000.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath

from sparkwright.trust.container_option_rules import is_ip_address

PROGRAM = "docker-proxy"
#: name of a forwarder in messages about a port
TITLE = "Docker's port forwarder"
#: maximum number of words in a command line, and of characters in a word
MAX_WORDS, MAX_WORD_CHARS = 32, 64
#: the command that ends an orphaned forwarder
RESTART_COMMAND = "sudo systemctl restart docker"
FIX = f"On the host: `{RESTART_COMMAND}`"


@dataclass(frozen=True, slots=True)
class Forwarder:
    """One docker-proxy process."""

    pid: int
    #: its port on the host
    port: int
    #: the container's address and port
    address: str
    container_port: int

    def __str__(self) -> str:
        return f"{TITLE} ({PROGRAM}, pid {self.pid}) for {self.address}:{self.container_port}"


def find_by_port(port: int) -> Forwarder | None:
    """Return the forwarder that holds a TCP port of this host, or None."""
    return next((forwarder for forwarder in _iter_running() if forwarder.port == port), None)


def parse_command_line(pid: int, words: Sequence[str]) -> Forwarder | None:
    """Return the forwarder with this command line; None if it belongs to another program or has an unknown format."""
    if not words or PurePath(words[0]).name != PROGRAM or len(words) > MAX_WORDS:
        return None
    options = {name: value for name, value in pairwise(words) if name.startswith("-")}
    values = {name.lstrip("-"): value for name, value in options.items() if len(value) <= MAX_WORD_CHARS}
    address, ports = values.get("container-ip", ""), [values.get(name, "") for name in ("host-port", "container-port")]
    if values.get("proto") != "tcp" or not is_ip_address(address) or not all(map(_is_port, ports)):
        return None
    return Forwarder(pid, int(ports[0]), address, int(ports[1]))


def _iter_running() -> Iterator[Forwarder]:
    """Yield Docker's forwarders: processes of root, or of this user with rootless Docker."""
    import psutil

    for process in psutil.process_iter(["name"]):
        if process.info["name"] != PROGRAM:
            continue
        with contextlib.suppress(psutil.Error):
            if process.uids().real in (0, os.getuid()):
                forwarder = parse_command_line(process.pid, process.cmdline())
                if forwarder is not None:
                    yield forwarder


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 1 << 16
