"""The decision about a switch on request: which server takes the turn, and the time that others need. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from sparkwright import units
from sparkwright.host.records.wakes import Failure, WakeRecord

#: after a failed switch no request starts another one to the same server for so long; after GIVES_UP in a row a person must act
PAUSE_S, GIVES_UP = 1800.0, 2
#: a request counts for at least so long; longer while the server that is awake keeps its turn
ASKED_S = 60.0
CLOCK = "%H:%M:%S"


@dataclass(frozen=True, slots=True)
class Sleeper:
    """A server that takes turns, as its last verification left it."""

    #: of its container
    name: str
    #: when it was verified last, seconds since the epoch
    verified_s: float
    on_request: bool = False
    sleep_after_s: float = 0.0
    stay_awake_s: float = 0.0
    #: duration of the last switch to it; 0 if unknown
    took_s: float = 0.0
    #: why no switch to it can start; empty if one can
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class Situation:
    """The servers that take turns on a machine, and the requests for them."""

    servers: Mapping[str, Sleeper]
    #: name of the server whose turn it is, and since when it is awake
    awake: str
    awake_s: float
    #: time of the last request, by sleeping server
    asked_s: Mapping[str, float] = field(default_factory=dict)
    #: time of the last request to the server that is awake
    used_s: float = math.inf
    #: the run that holds the host's lock
    busy: str = ""

    @property
    def until_s(self) -> float:
        """The time until which the server that is awake keeps its turn."""
        awake = self.servers.get(self.awake)
        return self.awake_s + awake.stay_awake_s if awake else 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of one look at the gateways."""

    #: the server that takes the turn; empty for none
    server: str = ""
    #: the reason, for the history
    why: str = ""
    #: a sentence for status, by server
    messages: Mapping[str, str] = field(default_factory=dict)


def needs(now: Situation, record: WakeRecord, now_s: float) -> dict[str, int]:
    """Return the seconds until each server could be awake that a request may wake; 0 if no switch to it was measured.

    Servers that no request wakes are left out.
    """
    found = {}
    for server in _asleep(now):
        ready_s = _ready_s(server, now, record)
        if not server.why_not and ready_s < math.inf:
            found[server.name] = math.ceil(max(0.0, ready_s - now_s) + server.took_s) if server.took_s else 0
    return found


def decide(now: Situation, record: WakeRecord, now_s: float) -> Decision:
    """Decide who takes the turn: the server that was asked for first, else the one whose place an idle server took."""
    messages = {server.name: _message(server, now, record, now_s) for server in _asleep(now)}
    requested = [server for server in _asleep(now) if _counts(server, now, record, now_s)]
    ready = [server for server in requested if _ready_s(server, now, record) <= now_s and not server.why_not]
    if ready and not now.busy:
        first = min(ready, key=lambda server: now.asked_s[server.name])
        return Decision(first.name, "a request at the gateway asked for it", messages)
    awake, home = now.servers.get(now.awake), now.servers.get(record.home)
    if not awake or not home or record.woken != now.awake or not awake.sleep_after_s:
        return Decision(messages=messages)
    after = f"after {units.about(awake.sleep_after_s)} without a request"
    messages[awake.name] = f"a request woke it; {home.name} is awake again {after}"
    if home.why_not or _pause_s(home, record) > now_s:
        messages[awake.name] = f"a request woke it, and {home.name} can't be woken again: {_why_not(home, record)}"
    elif now_s - now.used_s >= awake.sleep_after_s and now_s >= now.until_s and not now.busy:
        return Decision(
            home.name, f"{awake.name}, which a request woke, had none for {units.about(now_s - now.used_s)}", messages
        )
    return Decision(messages=messages)


def _asleep(now: Situation) -> Iterator[Sleeper]:
    """Yield the sleeping servers that requests may wake."""
    return (server for server in now.servers.values() if server.on_request and server.name != now.awake)


def _counts(server: Sleeper, now: Situation, record: WakeRecord, now_s: float) -> bool:
    """Return True if a request asked for this server since it was awake, and since the last attempt to wake it."""
    asked_s = now.asked_s.get(server.name, -math.inf)
    awake = now.servers.get(now.awake)
    kept_s = max(ASKED_S, awake.stay_awake_s if awake else 0.0)
    return asked_s > max(server.verified_s, _failure(server, record).time_s) and now_s - asked_s <= kept_s


def _failure(server: Sleeper, record: WakeRecord) -> Failure:
    """Return the failures since the server was verified last."""
    found = record.failures.get(server.name)
    return found if found and found.time_s > server.verified_s else Failure(0, 0.0, "")


def _pause_s(server: Sleeper, record: WakeRecord) -> float:
    """Return the time from which a switch to this server may be tried again."""
    failure = _failure(server, record)
    if failure.count >= GIVES_UP:
        return math.inf
    return failure.time_s + PAUSE_S if failure.count else 0.0


def _ready_s(server: Sleeper, now: Situation, record: WakeRecord) -> float:
    """Return the time from which a request may wake this server."""
    return max(now.until_s, _pause_s(server, record))


def _why_not(server: Sleeper, record: WakeRecord) -> str:
    failure = _failure(server, record)
    tried = f"the last try at {_at(failure.time_s)} failed: {failure.why}"
    return server.why_not or (f"{failure.count} tries in a row failed, {tried}" if failure.count >= GIVES_UP else tried)


def _message(server: Sleeper, now: Situation, record: WakeRecord, now_s: float) -> str:
    pause_s = _pause_s(server, record)
    if server.why_not or pause_s == math.inf:
        return f"no request wakes it: {_why_not(server, record)}"
    if pause_s > now_s:
        return f"no request wakes it until {_at(pause_s)}: {_why_not(server, record)}"
    if not _counts(server, now, record, now_s):
        took = f" in {units.about(server.took_s)}" if server.took_s else ""
        return f"a request wakes it{took}"
    requested = f"asked for at {_at(now.asked_s[server.name])}"
    if now.until_s > now_s:
        return f"{requested}; {now.awake} keeps its turn until {_at(now.until_s)}"
    return f"{requested}; waits for {now.busy}" if now.busy else f"{requested}; it is woken now"


def _at(time_s: float) -> str:
    return units.moment(time_s, CLOCK)
