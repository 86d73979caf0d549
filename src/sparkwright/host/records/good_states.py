"""The verified states of a host's server, and the place of its records on a host that serves several.

The last state is "verified", those before it are "verified_before", as a stack. A state holds everything needed to recreate it
without the recipe: spec (the container, its image by digest), model (id, commit, dir, transfer, files), serve (served_name,
utilization, needs_bytes, ready_s, tok_per_s, stop_timeout_s), measured, held_bytes, container_id, run, since, script (its docker
run command, as a deploy wrote it on the host), generation (of a member of a cluster: the same on all members whose containers
were started together).

The only server of a host has its records in the state folder itself; with several, each has them in servers/NAME, NAME being the
name of its container. They are moved under the host's lock: no one else writes them then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkwright.host.records.state_shapes import GOOD
from sparkwright.host.state import OF_SERVER, SERVERS, StateFolder
from sparkwright.trust.shapes import listed

KEPT = 5
#: fields of a spec that do not affect what is served
UNESSENTIAL = ("image_ids", "caches")


def last(state: StateFolder) -> dict[str, Any]:
    """Return the last verified state, which has at least its container's name; empty if there is none."""
    return _usable(state.read("verified"))


def before(state: StateFolder) -> list[dict[str, Any]]:
    """Return the verified states before the last one, newest first."""
    kept = (state.read("verified_before") or {}).get("states", [])
    return [row for row in map(_usable, listed(GOOD, kept)) if row]


def spec_of(state: StateFolder, container_id: str) -> dict[str, Any]:
    """Return the spec with which a container was verified; empty if it never was."""
    states = (last(state), *before(state))
    return next((row["spec"] for row in states if row.get("container_id") == container_id), {})


def _usable(good: dict[str, Any] | None) -> dict[str, Any]:
    return good if good and (good.get("spec") or {}).get("name") else {}


def remember(state: StateFolder, now: dict[str, Any], *, rolled_back: bool = False) -> None:
    """Record this as the last verified state.

    A rollback forgets the states after the one it returns to; a deploy forgets none.
    """
    was, older = last(state), before(state)
    script = next((row["script"] for row in (was, *older) if row.get("script") and same(row, now)), "")
    now = {"script": script, **now} if script else now
    if was.get("generation") and was.get("container_id") == now.get("container_id"):
        now["generation"] = was["generation"]  # a restart: the other members' containers are the same
    again = next((n for n, row in enumerate(older) if same(row, now)), None)
    if again is not None and rolled_back:
        older = older[again + 1 :]
    elif was and not same(was, now):
        older = [was, *(row for row in older if not same(row, now))]
    state.write("verified_before", {"states": older[:KEPT]})
    state.write("verified", now)


def same(first: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if two states serve the same: container settings and model revision, in whichever container."""
    return essence(first) == essence(other)


def essence(state: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return what a state serves: the container's spec and the model's commit, or the commits of all its models."""
    spec = {key: value for key, value in (state.get("spec") or {}).items() if key not in UNESSENTIAL}
    commits = [model.get("commit") for model in models_of(state)]
    return spec, commits if len(commits) > 1 else next(iter(commits), None)


def models_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the models of a state: the server's own first, then further ones, each with its `role`."""
    model = state.get("model") or {}
    return [model, *model.get("models", ())] if model else []


def settle_records(state: StateFolder, server: str, alone: str) -> StateFolder:
    """Return the state folder of a run, after moving its server's records to their place.

    Args:
        server: the container's name if the host serves several; empty if it serves one.
        alone: the container's name of the only server.
    """
    root = StateFolder(state.path)
    if server:
        here = StateFolder(state.path, server)
        if last(root).get("spec", {}).get("name") == server and not last(here):
            _move(root, here)
        here.memory_made()
        return here
    was = StateFolder(state.path, alone)
    if alone and was.memory.is_dir() and not last(root):
        _move(was, root)
        with contextlib.suppress(OSError):
            was.memory.rmdir()
            (state.path / SERVERS).rmdir()
    return root


def of_all_servers(state: StateFolder) -> Iterator[dict[str, Any]]:
    """Yield the verified states of all servers of a host, each server's last one first."""
    for server in StateFolder(state.path).servers():
        yield from (found for found in (last(server), *before(server)) if found)


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
