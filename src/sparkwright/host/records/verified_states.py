"""The verified states of a server, and the folder of its records.

The last state is in verified.json, earlier ones are in verified_before.json, newest first. A state contains everything needed to
recreate the server without the recipe.

The records of a host's only server are in the state folder; with several servers, those of each are in servers/NAME, named after
its container. A run moves them while it holds the host's lock.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypedDict

from sparkwright.host.records.state_shapes import VERIFIED_STATE_SHAPE
from sparkwright.host.state import SERVER_RECORDS, SERVERS_FOLDER, StateFolder
from sparkwright.protocol.container import SpecRecord
from sparkwright.trust.shapes import select_valid

MAX_EARLIER_STATES = 5
#: fields of a spec that do not affect what is served
IGNORED_SPEC_FIELDS = ("image_ids", "caches")


class ModelFile(TypedDict, total=False):
    """A file of a model."""

    path: str
    size_bytes: float


class ModelRecord(TypedDict, total=False):
    """A model of a verified state."""

    id: str | None
    commit: str | None
    dir: str | None
    files: Sequence[ModelFile]
    #: of a model besides the served one, such as a draft model
    role: str
    #: the models besides the served one
    models: Sequence[ModelRecord]


class ServeRecord(TypedDict, total=False):
    """The values that recreate a server, in addition to its container and models."""

    served_name: str
    utilization: float | None
    needs_bytes: float | None
    #: time limit of its start
    ready_s: float | None
    tok_per_s: float | None
    stop_timeout_s: float | None
    engine_memory: dict[str, Any]
    log: dict[str, Any]
    baseline_key: dict[str, Any]


class Measured(TypedDict, total=False):
    """The measurements of a verification."""

    #: duration of the start
    ready_s: float | None
    #: durations of its stages, by name
    load_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class VerifiedContainer:
    """A verified state of a server or gateway; an empty one, which is false, if none was verified.

    An earlier version may have written fewer fields.
    """

    #: the container, with its image's digest
    spec: SpecRecord = field(default_factory=SpecRecord)
    _: KW_ONLY
    container_id: str = ""
    #: time of the verification, in seconds since the epoch
    since: float = 0
    #: id of the run that verified it
    run: str = ""
    #: the docker run command, if a deploy wrote it
    script: str = ""
    #: fields of other versions
    other: dict[str, Any] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.spec.get("name"))

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Self:
        """Return the state of a validated record; an empty one if the record lacks the container's name."""
        values = dict(data or {})
        known = {name: values.pop(name) for name in field_names(cls) if name in values}
        return cls(**known, other=values) or cls()

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are set."""
        return {**self.other, **{name: value for name in field_names(type(self)) if (value := getattr(self, name))}}


@dataclass(frozen=True, slots=True)
class VerifiedState(VerifiedContainer):
    """A verified state of a server; an empty one, which is false, if no server was verified."""

    model: ModelRecord = field(default_factory=ModelRecord)
    serve: ServeRecord = field(default_factory=ServeRecord)
    measured: Measured = field(default_factory=Measured)
    restart_count: int = 0
    #: memory that the server held, and that was still available
    held_bytes: float | None = None
    left_bytes: float | None = None
    #: floor of the memory guard
    guard_gib: float = 0
    #: in a cluster: the same on all members whose containers were started together
    generation: str = ""


def field_names(state_type: type[VerifiedContainer]) -> list[str]:
    """Return the names of a state's fields in its file."""
    return [field.name for field in fields(state_type) if field.name != "other"]


def load_last(state: StateFolder) -> VerifiedState:
    """Return the last verified state; empty if there is none, or if it lacks the container's name."""
    return VerifiedState.from_json(state.read("verified"))


def load_earlier(state: StateFolder) -> list[VerifiedState]:
    """Return the verified states before the last one, newest first."""
    states = (state.read("verified_before") or {}).get("states", [])
    return list(filter(None, map(VerifiedState.from_json, select_valid(VERIFIED_STATE_SHAPE, states))))


def find_spec(state: StateFolder, container_id: str) -> SpecRecord:
    """Return the spec with which a container was verified; empty if the container was never verified."""
    states = (load_last(state), *load_earlier(state))
    return next((verified.spec for verified in states if verified.container_id == container_id), SpecRecord())


def save_verified(state: StateFolder, new_state: VerifiedState, *, rolled_back: bool = False) -> None:
    """Record the last verified state. With `rolled_back`, drop the states that were verified after its first verification."""
    previous, older_states = load_last(state), load_earlier(state)
    same_states = (earlier for earlier in (previous, *older_states) if is_same(earlier, new_state))
    script = new_state.script or next((earlier.script for earlier in same_states if earlier.script), "")
    # after a restart, the other members' containers are the same
    is_restart = previous.generation and previous.container_id == new_state.container_id
    generation = previous.generation if is_restart else new_state.generation
    new_state = replace(new_state, script=script, generation=generation)
    match_index = next((n for n, earlier in enumerate(older_states) if is_same(earlier, new_state)), None)
    if match_index is not None and rolled_back:
        older_states = older_states[match_index + 1 :]
    elif previous and not is_same(previous, new_state):
        older_states = [previous, *(earlier for earlier in older_states if not is_same(earlier, new_state))]
    state.write("verified_before", {"states": [earlier.to_json() for earlier in older_states[:MAX_EARLIER_STATES]]})
    state.write("verified", new_state.to_json())


def is_same(first: VerifiedState, other: VerifiedState) -> bool:
    """Return True if two states have the same container settings and model revisions."""
    return served_identity(first) == served_identity(other)


def served_identity(state: VerifiedState) -> tuple[dict[str, Any], Any]:
    """Return the spec without IGNORED_SPEC_FIELDS, and the model's commit or, with several models, the list of commits."""
    spec = {key: value for key, value in state.spec.items() if key not in IGNORED_SPEC_FIELDS}
    commits = [model.get("commit") for model in models_of(state.model)]
    return spec, commits if len(commits) > 1 else next(iter(commits), None)


def models_of(model: ModelRecord) -> list[ModelRecord]:
    """Return the models of a state: the served model first, then others with their `role`, such as a draft model."""
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
        if load_last(root).spec.get("name") == server and not load_last(server_folder):
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


def iter_all_servers(state: StateFolder) -> Iterator[VerifiedState]:
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
