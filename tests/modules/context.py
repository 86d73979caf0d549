"""A real, small Context for tests of modules: it keeps what they say."""

import weakref
from pathlib import Path
from typing import Any

from sparkwright.host.machine import Machine
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event
from sparkwright.secret import Secret


class RecordingContext(RunContext):
    """A context that keeps a module's events in `events`.

    Args:
        home: the user's home, which holds the state folder.
    """

    def __init__(
        self, home: Path, *, check: bool = False, secrets: dict[str, Secret] | None = None, **machine: Any
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
        # as a run does at its end: a test that starts containers would leave a process behind for each
        weakref.finalize(self, self.guards.end)

    @property
    def notes(self) -> list[str]:
        return [item["text"] for item in self.events if item["event"] == "note"]
