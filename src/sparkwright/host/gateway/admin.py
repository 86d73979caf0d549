"""Commands to a running HAProxy over its sockets. Its container may write to their folder: the contents are not trusted."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sparkwright.gateway import statistics
from sparkwright.gateway.listeners import SOCKET
from sparkwright.transport.connection import TransportError, converse

ANSWER_S = 5.0
#: this process's open files, by number
OPEN = Path("/proc/self/fd")
#: limit of an answer; a gateway with hundreds of servers sends less
LARGEST_BYTES = 4 * 2**20


def ask(sockets: Path, command: str, at: str = SOCKET) -> str:
    """Return the answer to one command; empty without an answer within ANSWER_S, or if it is far too long.

    Args:
        sockets: the folder of the sockets.
        at: the socket's name there.
    """
    with contextlib.suppress(OSError, TransportError), socket_path(sockets, at) as path:
        answer = converse(path, f"{command}\n".encode(), timeout_s=ANSWER_S, most_bytes=LARGEST_BYTES)
        return answer.decode(errors="replace")
    return ""


@contextlib.contextmanager
def socket_path(sockets: Path, name: str) -> Iterator[str]:
    """Yield a short path to a socket in this folder: a socket's path is limited to 107 bytes.

    Raises OSError if there is none, or if it is a link, which could lead to another program's socket.
    """
    if not OPEN.is_dir():  # not Linux: it is the sandbox, whose folder is the user's own
        with tempfile.TemporaryDirectory(prefix="sw") as short:
            Path(short, "s").symlink_to(sockets.absolute())
            yield f"{short}/s/{name}"
        return
    folder = os.open(sockets, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        if not stat.S_ISSOCK(os.fstat(found).st_mode):
            raise FileNotFoundError(name)
        yield f"{OPEN}/{found}"
    finally:
        os.close(found)


def running_digest(sockets: Path) -> str:
    """Return the digest of the files that the running HAProxy was started with; empty if none runs."""
    rows = (line.partition(": ") for line in ask(sockets, "show info").splitlines())
    described = next((value for name, _, value in rows if name.lower() == "description"), "")
    return described.strip().rpartition(" ")[2]


def rows(sockets: Path) -> list[dict[str, str]]:
    """Return its statistics, a row per frontend, backend and server; empty if they are malformed."""
    return statistics.table(ask(sockets, "show stat"))
