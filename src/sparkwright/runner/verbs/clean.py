"""The last step of `host.clean`: remove sparkwright's own folders, and with them the runtime that runs this.

It is not a run: its journal would be among the removed files.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from sparkwright.errors import Refused
from sparkwright.host.containers import compile_caches
from sparkwright.host.machine import Machine
from sparkwright.host.records import own_folders
from sparkwright.host.runs import journal, lock
from sparkwright.host.runs.context import RunContext
from sparkwright.host.state import StateFolder
from sparkwright.protocol.events import Event, event

#: the previous step has sent its recap, but its process may take a moment longer, seconds
END_S = 5.0


def clean(request: dict[str, Any], machine: Machine, state: StateFolder) -> Iterator[Event]:
    """Yield one `recap` event. name: the host's, for messages. Raises Refused beside another run."""
    started_s, host = time.monotonic(), str(request.get("name", ""))
    context = RunContext(machine, state, run_id="", emit=lambda value: None)
    owner = lock.Owner("host.clean", "host.clean", "", 0, time.time())
    with lock.held(state, owner, host=host):
        _wait_alone(state, host)
        kept = [*own_folders.files_in_use(context), *compile_caches.mounted_folders(context)]
        own_folders.remove(machine.home, kept)
    counts = {"ok": 1, "changed": 1, "failed": 0, "skipped": 0, "unreachable": 0}
    yield event("recap", host=host, **counts, exit=0, seconds=round(time.monotonic() - started_s, 3), msg="")


def _wait_alone(state: StateFolder, host: str) -> None:
    deadline_s = time.monotonic() + END_S
    while living := journal.living(state):
        if time.monotonic() > deadline_s:
            message = f"{host} is in use by run {living[0].name}."
            raise Refused(message, fix=f"Follow it with `invoke attach --host {host}`, then clean again.")
        time.sleep(lock.POLL_S)
