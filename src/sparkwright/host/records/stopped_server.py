"""The record of the server that a run stops, previous.json, written before its container is changed, to restore it."""

from __future__ import annotations

from typing import TypedDict, cast

from sparkwright.host.state import StateFolder

NAME = "previous"


class StoppedServer(TypedDict, total=False):
    """The fields of the record. Without a record, or in one of an earlier version, fields are missing."""

    #: of the server's container
    id: str
    name: str
    #: its restart policy
    policy: str
    #: whether it was running
    running: bool
    #: whether it was started again
    started: bool
    #: id of the run
    run: str
    #: name of the new container
    attempt: str


def load(state: StateFolder) -> StoppedServer:
    """Return the record; empty if there is none."""
    return cast(StoppedServer, state.read(NAME) or {})


def save(state: StateFolder, record: StoppedServer) -> None:
    """Write the record."""
    state.write(NAME, {**record})


def remove(state: StateFolder) -> None:
    """Remove the record, if it exists."""
    state.remove(NAME)
