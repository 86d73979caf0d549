"""One short request to many hosts at once, with one answer each, without a run or its events."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkwright import here
from sparkwright.defaults import FORKS
from sparkwright.errors import Failed, SparkwrightError
from sparkwright.fleet.member import Member, broke, hang_up
from sparkwright.protocol import recap
from sparkwright.protocol.events import Event

Answer = Event | SparkwrightError


def everyone(members: Sequence[Member], header_of: Callable[[Member], dict[str, Any]], kind: str) -> list[Answer]:
    """Return each member's first event of a kind, in their order, or the error of a member that gave none.

    Connections stay open. Ctrl-C is left to the caller, as nothing runs on the hosts that would have to be stopped.
    """
    pool = ThreadPoolExecutor(max_workers=min(FORKS, len(members)))
    try:
        return list(pool.map(here.carried(one), members, map(header_of, members), itertools.repeat(kind)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def one(member: Member, header: dict[str, Any], kind: str) -> Answer:
    """Return the answer of one member, as `everyone` does. A failed connection is closed, and opened again the next time."""
    try:
        for event in member.request(header):
            if event["event"] == kind:
                return event
            if event["event"] == "recap":
                return recap.error(event)
        return Failed("the host gave no answer.")
    except SparkwrightError as error:
        hang_up([member])
        member.link = None
        error.where = "" if error.where == member.host.name else error.where
        return error
    except Exception as error:
        return broke(error)
