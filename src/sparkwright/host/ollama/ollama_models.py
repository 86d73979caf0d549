"""The models that this host's Ollama instances hold in the memory shared by CPU and GPU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from sparkwright.host.module import Context
from sparkwright.host.ollama import ollama_places
from sparkwright.host.ollama.ollama_client import Absent, Busy, Loaded, Ollama
from sparkwright.host.ollama.ollama_places import Place
from sparkwright.transport.connection import lookup

POLL_S = 0.25
ASK_AGAIN_S = 3.0
LOOKUP_S = 5.0


@dataclass(frozen=True, slots=True)
class Held:
    """A model and the Ollama instance that holds it."""

    place: Place
    model: Loaded


@dataclass(frozen=True, slots=True)
class Seen:
    """The Ollama instances of this host, and the models that they hold."""

    #: all models listed
    held: tuple[Held, ...]
    #: instances that answered or hang
    present: tuple[Place, ...]
    #: instances that did not answer in time: they load a model, or are stuck
    hanging: tuple[Place, ...]

    @property
    def empty(self) -> bool:
        """True if no model is listed and no instance hangs; only memory proves that nothing is held."""
        return not self.held and not self.hanging


def inspect(context: Context, *, timeout_s: float = 5) -> Seen:
    """Query each Ollama instance of this host. If OLLAMA_HOST names another machine, that instance is skipped."""
    held: list[Held] = []
    present, hanging = [], []
    for place in ollama_places.find(context):
        if place.kind == "address" and not is_here(place.url):
            continue
        try:
            rows = Ollama(place.url, timeout_s=timeout_s).loaded()
        except Absent:
            continue
        except Busy:
            hanging.append(place)
        else:
            held += [Held(place, loaded) for loaded in rows]
        present.append(place)
    return Seen(tuple(held), tuple(present), tuple(hanging))


def unload(context: Context, *, timeout_s: float) -> Seen:
    """Unload all models, and repeat for those that stay: an unload request is lost while a model loads.

    Returns the models that are left after timeout_s, or none.
    """
    deadline_s = time.monotonic() + timeout_s
    asked_at_s: dict[str, float] = {}
    most = 0
    while True:
        seen = inspect(context, timeout_s=max(0.5, min(5.0, deadline_s - time.monotonic())))
        most = max(most, len(seen.held))
        if seen.empty or time.monotonic() > deadline_s:
            return seen
        _ask_to_go(seen.held, asked_at_s)
        context.progress(most - len(seen.held), most, text="unloading Ollama's models")
        time.sleep(POLL_S)


def _ask_to_go(held: Sequence[Held], asked_at_s: dict[str, float]) -> None:
    """Request that models are unloaded, unless requested recently.

    Args:
        asked_at_s: the last request for each model, seconds of the monotonic clock.
    """
    for usage in held:
        key = f"{usage.place.url} {usage.model.name}"
        if time.monotonic() - asked_at_s.get(key, -ASK_AGAIN_S) < ASK_AGAIN_S:
            continue
        asked_at_s[key] = time.monotonic()
        try:
            Ollama(usage.place.url).unload(usage.model.name)
        except (Absent, Busy):
            continue  # the next list shows the outcome


def is_here(url: str) -> bool:
    """Return True if a URL's host is this one: only then its models are in this host's memory."""
    import psutil

    name = urlsplit(url).hostname or "127.0.0.1"
    found = lookup(name, LOOKUP_S)
    own = {address.address.partition("%")[0] for rows in psutil.net_if_addrs().values() for address in rows}
    return bool(found & own) or any(str(item).startswith("127.") or item == "::1" for item in found)
