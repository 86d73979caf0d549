"""Events of a run, with default fields, and the lines that a subscriber prints for them."""

from collections.abc import Callable, Iterable
from typing import Any

from sparkwright.protocol.events import COUNTS, Event, event


def task_event(kind: str = "task_finished", **fields: Any) -> Event:
    defaults = {"host": "spark1", "task": "1", "name": "Pull the image", "module": "docker_image", "register": ""}
    result = {"status": "ok", "msg": "", "fix": "", "where": "", "diff": [], "data": {}, "seconds": 0.1}
    return event(kind, **{**defaults, **result, **fields})


def host_event(kind: str, host: str = "spark1", **fields: Any) -> Event:
    """Return an event at a host's end: `recap` or `host_finished`."""
    counts = {**dict.fromkeys(COUNTS, 0), "ok": 3}
    return event(kind, host=host, **{**counts, "exit": 0, "seconds": 61, "msg": "", **fields})


def print_events(create: Callable[[Any], Any], hosts: Iterable[str], events: Iterable[Event]) -> list[str]:
    """Return the lines that a subscriber prints. create: returns it, given a function that prints."""
    printed: list[str] = []
    subscriber = create(lambda style, text: printed.append(text.rstrip()))
    subscriber.set_hosts(list(hosts))
    for item in events:
        subscriber.on(item)
    subscriber.close()
    return printed
