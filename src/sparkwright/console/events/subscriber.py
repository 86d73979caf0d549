"""The interface of subscribers to a run's events, and the subscribers that print JSON or only notes."""

from __future__ import annotations

import json
import sys
from typing import Protocol, TextIO

from sparkwright.console.command_output import print_prose
from sparkwright.errors import Exit
from sparkwright.protocol.events import Event

#: keep-alive events
HIDDEN_EVENTS = ("alive",)


class Subscriber(Protocol):
    """A subscriber to a run's events. `close` is called once at the end, even after an error."""

    def on(self, event: Event) -> None: ...

    def close(self) -> None: ...


class NoteLines:
    """Prints the hosts' notes on standard error, for commands that print their results at the end."""

    def on(self, event: Event) -> None:
        if event["event"] == "note" and not event.get("detail"):
            print_prose(f"{event['host']}: {event['text']}", file=sys.stderr)

    def close(self) -> None: ...


class JsonLines:
    """Prints events as lines of JSON. Recaps are printed at the end, so that the last line is a recap."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._recaps: list[Event] = []

    def on(self, event: Event) -> None:
        if event["event"] == "recap":
            succeeded = event["exit"] in (Exit.OK, Exit.CHANGES)
            self._recaps.append(event if succeeded else {**event, "error": event.get("msg", "")})
        elif event["event"] not in HIDDEN_EVENTS:
            self._print(event)

    def close(self) -> None:
        for recap in self._recaps:
            self._print(recap)

    def _print(self, event: Event) -> None:
        self._out.write(json.dumps(event, ensure_ascii=False, default=str) + "\n")
        self._out.flush()
