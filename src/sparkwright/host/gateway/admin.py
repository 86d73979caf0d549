"""What a running HAProxy says of itself over its admin socket."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sparkwright.gateway import statistics
from sparkwright.gateway.render import SOCKET
from sparkwright.transport.connection import TransportError, converse

#: what the sandbox's stand-in calls itself, where HAProxy says "HAProxy"
STAND_IN = "sparkwright-stand-in"
NOT_HAPROXY = "a stand-in for HAProxy, which is not installed here"
ANSWER_S = 5.0
#: the files that this process has open, each under its number
OPEN = Path("/proc/self/fd")
#: of an answer; a gateway of hundreds of servers tells less
LARGEST_BYTES = 4 * 2**20


def ask(folder: Path, command: str, at: str = SOCKET) -> str:
    """Return the answer to one command; empty when there is none within ANSWER_S, or a far too long one.

    Args:
        folder: of its configuration.
        at: the socket's name there.
    """
    with contextlib.suppress(OSError, TransportError):
        if not OPEN.is_dir():  # no Linux: it is the sandbox, whose stand-in leaves a link to a short path
            return _ask(os.path.realpath(folder / at), command)
        # a path of a socket has 107 bytes at most, and the folder's may be longer
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return _ask(f"{OPEN}/{opened}/{at}", command)
        finally:
            os.close(opened)
    return ""


def _ask(path: str, command: str) -> str:
    answer = converse(path, f"{command}\n".encode(), timeout_s=ANSWER_S, most_bytes=LARGEST_BYTES)
    return answer.decode(errors="replace")


def running_digest(folder: Path) -> str:
    """The digest of the files that the running HAProxy was started with; empty when none runs."""
    return _info(folder, "description").rpartition(" ")[2]


def stand_in(folder: Path) -> bool:
    """Whether what runs is the sandbox's stand-in, and not HAProxy."""
    return _info(folder, "name") == STAND_IN


def _info(folder: Path, wanted: str) -> str:
    rows = (line.partition(": ") for line in ask(folder, "show info").splitlines())
    return next((value for name, _, value in rows if name.lower() == wanted), "").strip()


def rows(folder: Path) -> list[dict[str, str]]:
    """Its statistics, a row for each frontend, backend and server."""
    return statistics.table(ask(folder, "show stat"))
