"""Moving the records of a host's server when the host begins, or ends, to serve several.

The only server of a host has its records in the state folder itself; with several, each has them in servers/NAME, NAME being the
name of its container. They are moved under the host's lock: no one else writes them then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparkwright.host.records import good_states
from sparkwright.host.state import OF_SERVER, SERVERS, StateFolder


def settle(state: StateFolder, server: str, alone: str) -> StateFolder:
    """Return the state folder of a run, after moving its server's records to their place.

    Args:
        server: the container's name if the host serves several; empty if it serves one.
        alone: the container's name of the only server.
    """
    root = StateFolder(state.path)
    if server:
        here = StateFolder(state.path, server)
        if good_states.last(root).get("spec", {}).get("name") == server and not good_states.last(here):
            _move(root, here)
        here.memory_made()
        return here
    was = StateFolder(state.path, alone)
    if alone and was.memory.is_dir() and not good_states.last(root):
        _move(was, root)
        with contextlib.suppress(OSError):
            was.memory.rmdir()
            (state.path / SERVERS).rmdir()
    return root


def good(state: StateFolder) -> Iterator[dict[str, Any]]:
    """Yield the verified states of all servers of a host, each server's last one first."""
    for server in StateFolder(state.path).servers():
        yield from (found for found in (good_states.last(server), *good_states.before(server)) if found)


def _move(source: StateFolder, target: StateFolder) -> None:
    """Move a server's records, `verified` last, so that an interrupted move is repeated."""
    to = target.memory_made()
    found = [path for path in source.memory.iterdir() if _of_server(path)]
    for path in sorted(found, key=lambda path: path.name == "verified.json"):
        _put(path, to / path.name)


def _put(path: Path, at: Path) -> None:
    """Move a file, replacing an existing one; merge a folder into an existing one."""
    if not (path.is_dir() and at.is_dir()):
        path.rename(at)
        return
    for item in path.iterdir():
        _put(item, at / item.name)
    path.rmdir()


def _of_server(path: Path) -> bool:
    return path.name.partition(".")[0] in OF_SERVER and not path.name.endswith(".lock")
