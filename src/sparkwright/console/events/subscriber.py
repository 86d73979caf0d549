"""The interface of an event subscriber. The fleet passes every event of every host to each subscriber, in one thread."""

from __future__ import annotations

from typing import Protocol

from sparkwright.protocol.events import Event


class Subscriber(Protocol):
    """A subscriber to events. Each event has a `host`. `close` is called once at the end, also after an error."""

    def on(self, event: Event) -> None: ...

    def close(self) -> None: ...
