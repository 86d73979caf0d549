"""A context for tests of modules that records their events."""

import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event
from sparkwright.secret import Secret


class RecordingContext(RunContext):
    """A run's context on a host with this home; `events` has the events of modules."""

    def __init__(
        self, home: Path, *, check: bool = False, secrets: Mapping[str, Secret] | None = None, **machine: Any
    ) -> None:
        self.events: list[Event] = []
        super().__init__(
            machine=Machine(home=home, **machine),
            state=StateFolder.in_home(home),
            run_id="run-1",
            emit=self.events.append,
            check=check,
            secrets=secrets or {},
        )
        # as at the end of a run: without it, guards of started containers would keep running
        weakref.finalize(self, self.guards.end)

    @property
    def notes(self) -> list[str]:
        return [event["text"] for event in self.events if event["event"] == "note"]
