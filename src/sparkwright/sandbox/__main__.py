"""Entry points of the sandbox's processes.

python3 -m sparkwright.sandbox serve FOLDER: the daemon, started by control.up.
python3 -m sparkwright.sandbox occupy PORT...: occupies ports, for the fault port-taken.
"""

from __future__ import annotations

import contextlib
import socket
import sys
from pathlib import Path

#: name of the process that occupies ports, as tools such as `ss` show it
SQUATTER_NAME = "port-squatter"


def occupy_ports(ports: list[str]) -> None:
    """Listen on the ports that are free until standard input is closed: the daemon clears the fault or exits."""
    with contextlib.suppress(OSError):  # Linux only
        Path("/proc/self/comm").write_text(SQUATTER_NAME)
    listeners = [listener for port in ports if (listener := _listen(int(port))) is not None]
    print(len(listeners), flush=True)
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
    if sys.argv[1] == "occupy":
        occupy_ports(sys.argv[2:])
    else:
        from sparkwright.sandbox.daemon import Spark

        Spark(Path(sys.argv[2])).serve()
