"""The verified states of a server, and the folder of its records.

The last state is in verified.json, earlier ones are in verified_before.json, newest first. A state contains everything needed to
recreate the server without the recipe: spec (the container, with its image's digest), model (id, commit, dir, transfer, files),
serve (served_name, utilization, needs_bytes, ready_s, tok_per_s, stop_timeout_s), measured, held_bytes, container_id, run, since,
script (the docker run command, if a deploy wrote it), generation (in a cluster: the same on all members whose containers were
started together).

The records of a host's only server are in the state folder; with several servers, those of each are in servers/NAME, named after
its container. A run moves them while it holds the host's lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sparkwright.host.records.state_shapes import VERIFIED_STATE_SHAPE
from sparkwright.host.state import SERVER_RECORDS, SERVERS_FOLDER, StateFolder
from sparkwright.trust.shapes import select_valid

MAX_EARLIER_STATES = 5
#: fields of a spec that do not affect what is served
IGNORED_SPEC_FIELDS = ("image_ids", "caches")


def load_last(state: StateFolder) -> dict[str, Any]:
    """Return the last verified state; empty if there is none, or if it lacks the container's name."""
    return _validate(state.read("verified"))


def load_earlier(state: StateFolder) -> list[dict[str, Any]]:
    """Return the verified states before the last one, newest first."""
    states = (state.read("verified_before") or {}).get("states", [])
    return [verified for verified in map(_validate, select_valid(VERIFIED_STATE_SHAPE, states)) if verified]


def find_spec(state: StateFolder, container_id: str) -> dict[str, Any]:
    """Return the spec with which a container was verified; empty if the container was never verified."""
    states = (load_last(state), *load_earlier(state))
    return next((verified["spec"] for verified in states if verified.get("container_id") == container_id), {})


def _validate(state: dict[str, Any] | None) -> dict[str, Any]:
    return state if state and (state.get("spec") or {}).get("name") else {}


def save_verified(state: StateFolder, new_state: dict[str, Any], *, rolled_back: bool = False) -> None:
    """Record the last verified state. With `rolled_back`, drop the states that were verified after its first verification."""
    previous, older_states = load_last(state), load_earlier(state)
    same_states = (earlier for earlier in (previous, *older_states) if is_same(earlier, new_state))
    script = next((earlier["script"] for earlier in same_states if earlier.get("script")), "")
    new_state = {"script": script, **new_state} if script else new_state
    if previous.get("generation") and previous.get("container_id") == new_state.get("container_id"):
        new_state["generation"] = previous["generation"]  # a restart: the other members' containers are the same
    match_index = next((n for n, earlier in enumerate(older_states) if is_same(earlier, new_state)), None)
    if match_index is not None and rolled_back:
        older_states = older_states[match_index + 1 :]
    elif previous and not is_same(previous, new_state):
        older_states = [previous, *(earlier for earlier in older_states if not is_same(earlier, new_state))]
    state.write("verified_before", {"states": older_states[:MAX_EARLIER_STATES]})
    state.write("verified", new_state)


def is_same(first: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return True if two states have the same container settings and model revisions."""
    return served_identity(first) == served_identity(other)


def served_identity(state: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return the spec without IGNORED_SPEC_FIELDS, and the model's commit or, with several models, the list of commits."""
    spec = {key: value for key, value in (state.get("spec") or {}).items() if key not in IGNORED_SPEC_FIELDS}
    commits = [model.get("commit") for model in models_of(state)]
    return spec, commits if len(commits) > 1 else next(iter(commits), None)


def models_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the models of a state: the served model first, then others with their `role`, such as a draft model."""
    model = state.get("model") or {}
    return [model, *model.get("models", ())] if model else []


def resolve_records(state: StateFolder, server: str, only_server: str) -> StateFolder:
    """Return the state folder for a run, after moving its server's records there.

    Args:
        server: the container's name if the host has several servers; otherwise empty.
        only_server: the container's name if the host has one server.
    """
    root = StateFolder(state.path)
    if server:
        server_folder = StateFolder(state.path, server)
        if load_last(root).get("spec", {}).get("name") == server and not load_last(server_folder):
            _move_records(root, server_folder)
        server_folder.ensure_records_folder()
        return server_folder
    named_folder = StateFolder(state.path, only_server)
    if only_server and named_folder.records_folder.is_dir() and not load_last(root):
        _move_records(named_folder, root)
        with contextlib.suppress(OSError):
            named_folder.records_folder.rmdir()
            (state.path / SERVERS_FOLDER).rmdir()
    return root


def iter_all_servers(state: StateFolder) -> Iterator[dict[str, Any]]:
    """Yield the verified states of all servers of a host; of each server, the newest first."""
    for server in StateFolder(state.path).servers():
        yield from (verified for verified in (load_last(server), *load_earlier(server)) if verified)


def _move_records(source: StateFolder, target: StateFolder) -> None:
    """Move a server's records, verified.json last, so that an interrupted move is repeated."""
    folder = target.ensure_records_folder()
    records = (path for path in source.records_folder.iterdir() if path.name.partition(".")[0] in SERVER_RECORDS)
    paths = [path for path in records if not path.name.endswith(".lock")]
    for path in sorted(paths, key=lambda path: path.name == "verified.json"):
        _move_path(path, folder / path.name)


def _move_path(path: Path, target: Path) -> None:
    """Move a file, replacing an existing one; merge a folder into an existing one."""
    if not (path.is_dir() and target.is_dir()):
        path.rename(target)
        return
    for child in path.iterdir():
        _move_path(child, target / child.name)
    path.rmdir()
