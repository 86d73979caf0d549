"""Read a container's log within limits, because the host is locked during that time and a log can be of any length."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sparkwright.errors import Failed
from sparkwright.host.containers import containers, docker_client
from sparkwright.units import MIB

if TYPE_CHECKING:
    import docker

#: limits for the beginning of the last start's log: an engine logs its settings within the first 100 kB
MAX_BYTES, MAX_READ_S = 256 * MIB, 30.0
#: limits for the end of the log, which contains the reason for an exit
MAX_TAIL_BYTES, TAIL_TIMEOUT_S = 4 * MIB, 5.0
TAIL_LINE_COUNT = 2000


@dataclass
class StartLog:
    """The log of a container's last start, in pieces: its beginning, up to a number of bytes and seconds, and then its end."""

    client: docker.DockerClient
    name: str
    max_bytes: int = MAX_BYTES
    max_s: float = MAX_READ_S
    #: description of the part that was read; empty if the whole log was read. Set during iteration
    truncation: str = field(default="", init=False)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces. Raises Failed if the container does not exist or its log cannot be read."""
        container = containers.inspect(self.client, self.name)
        if container is None:
            raise Failed(f"there is no container {self.name}.")
        try:
            yield from self._read_beginning(container)
            if self.truncation:
                yield b"\n"
                yield read_tail(self.client, self.name, TAIL_LINE_COUNT)
        except docker_client.errors().APIError as error:
            raise Failed(f"cannot read the log of {self.name}: {error.explanation or error}.") from None

    def _read_beginning(self, container: dict[str, Any]) -> Iterator[bytes]:
        start_s, size = time.monotonic(), 0
        for piece in self.client.api.logs(
            self.name, since=containers.log_start_s(container), stream=True, follow=False
        ):
            size += len(piece)
            if size > self.max_bytes:
                self.truncation = f"log read up to {self.max_bytes / MIB:.1f} MiB, and its last {TAIL_LINE_COUNT} lines"
                return
            yield piece
            if time.monotonic() - start_s > self.max_s:
                self.truncation = (
                    f"log read for {self.max_s:g} s, up to {size / MIB:.1f} MiB, and its last {TAIL_LINE_COUNT} lines"
                )
                return


def read_tail(client: docker.DockerClient, name: str, line_count: int, *, until_s: float | None = None) -> bytes:
    """Return the last lines of a container's log, at most 4 MiB and as much as arrives within 5 s.

    Args:
        until_s: only lines written before this time, seconds since the epoch.
    """
    deadline_s, tail = time.monotonic() + TAIL_TIMEOUT_S, bytearray()
    for piece in client.api.logs(name, tail=line_count, stream=True, follow=False, until=until_s):
        tail += piece
        if len(tail) > 2 * MAX_TAIL_BYTES:
            del tail[:-MAX_TAIL_BYTES]
        if time.monotonic() > deadline_s:
            break
    return bytes(tail[-MAX_TAIL_BYTES:])


def read_last_lines(client: docker.DockerClient, name: str, line_count: int) -> list[str]:
    """Return the last lines of a container's log as text."""
    return read_tail(client, name, line_count).decode(errors="replace").splitlines()
