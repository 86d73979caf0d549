"""One short question to many hosts at once: no run, no events to follow, one answer each."""

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
    """The first event of this kind from each member, in their order; why there is none, where there is none.

    Connections stay open. Ctrl-C is the caller's: nothing runs on the hosts that could be left running.
    """
    pool = ThreadPoolExecutor(max_workers=min(FORKS, len(members)))
    try:
        return list(pool.map(here.carried(one), members, map(header_of, members), itertools.repeat(kind)))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def one(member: Member, header: dict[str, Any], kind: str) -> Answer:
    """As `everyone`, of one member. One that could not be asked is connected to anew the next time."""
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
