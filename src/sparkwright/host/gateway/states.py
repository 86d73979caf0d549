"""Server states for HAProxy's reload: drained servers and serving interim servers, which a reload would reset.

HAProxy prefers the port in this file over the one in its configuration, so only these servers are in it, with the port of the
next configuration. The file exists only during a reload: an outdated one would drain servers that have been returned since.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from sparkwright.gateway.operations import STATES
from sparkwright.host.gateway import admin
from sparkwright.host.state import write_atomically

VERSION = "1"
BACKEND, NAME, ADDRESS, ADMIN_STATE, PORT = "be_name", "srv_name", "srv_addr", "srv_admin_state", "srv_port"
#: bits of the administrative state: forced maintenance, forced drain (haproxy, management.txt, "show servers state")
FORCED = 0x01 | 0x08
#: bit of an interim server: `disabled` in the configuration. Without the others, it serves (tried with 2.6.12)
DISABLED = 0x04
SERVER = re.compile(r"server (\S+) \S+:([0-9]+)(?: |$)")


def keep(sockets: Path, files: Path, config: str) -> None:
    """Record the drained servers of the running HAProxy for its successor.

    Args:
        sockets: the folder of the running HAProxy's sockets.
        files: the folder of the files that are read next.
        config: the configuration among them.
    """
    _write(files, list(_drained(admin.ask(sockets, "show servers state"), _ports(config))))


def forget(files: Path) -> None:
    """Remove the record after the reload."""
    _write(files, [])


def _write(files: Path, lines: list[str]) -> None:
    write_atomically(files / STATES, "".join(f"{line}\n" for line in (VERSION, *lines)).encode())


def _drained(answer: str, ports: dict[tuple[str, str], str]) -> Iterator[str]:
    """Yield the header, and the rows of drained or interim servers that remain, with their new ports."""
    version, _, rest = answer.partition("\n")
    header, *rows = rest.splitlines() or [""]
    names = header.removeprefix("# ").split()
    if version != VERSION or not {BACKEND, NAME, ADDRESS, ADMIN_STATE, PORT} <= {*names}:
        return
    yield header
    for row in rows:
        about = dict(zip(names, row.split(), strict=False))
        port = ports.get((about.get(BACKEND, ""), about.get(NAME, "")), "")
        if port and about.get(ADMIN_STATE, "").isdecimal() and int(about[ADMIN_STATE]) & (FORCED | DISABLED):
            yield " ".join({**about, ADDRESS: "-", PORT: port}.values())


def _ports(config: str) -> dict[tuple[str, str], str]:
    """Return the port of each server in a configuration, by backend and name."""
    found, backend = dict[tuple[str, str], str](), ""
    for line in map(str.strip, config.splitlines()):
        if line.startswith("backend "):
            backend = line.removeprefix("backend ")
        elif server := SERVER.match(line):
            found[backend, server[1]] = server[2]
    return found
