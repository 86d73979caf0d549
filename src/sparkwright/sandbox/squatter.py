"""A process that occupies ports: python3 -m sparkwright.sandbox.squatter PORT... (fault port-taken)

It has a name of its own and listens until its standard input ends: the sandbox is gone or the fault is cleared.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

NAME = "port-squatter"


def main() -> None:
    """Listen on the ports that are free."""
    with contextlib.suppress(OSError):  # only on Linux can a process set its name like this
        Path("/proc/self/comm").write_text(NAME)
    held = [connection for connection in (_listen(int(port)) for port in sys.argv[1:]) if connection is not None]
    print(len(held), flush=True)
    sys.stdin.read()


def _listen(port: int) -> socket.socket | None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError:
        listener.close()
        return None
    return listener


if __name__ == "__main__":
    main()
