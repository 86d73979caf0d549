"""Short requests to hosts for one answer each, without a run or its events."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sparkwright import here
from sparkwright.app.connect import Selection
from sparkwright.app.questions import answers
from sparkwright.console.out import say_error
from sparkwright.defaults import FORKS
from sparkwright.errors import Exit, Failed, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member, broke, hang_up
from sparkwright.protocol import recap
from sparkwright.protocol.events import Event
from sparkwright.protocol.plan import Plan, Task, new_run_id

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


def ask_module(
    fleet: Fleet,
    member: Member,
    name: str,
    args: dict[str, Any],
    *,
    check: bool = False,
    exclusive: bool = False,
    become: bool = False,
) -> dict[str, Any]:
    """Run one module and return its answer. Raises Failed with the host's message and exit code.

    Args:
        check: run in check mode.
        exclusive: hold the host's lock, as a deploy does.
        become: run as root.
    """
    task = Task(id=name, name=name.replace("_", " "), module=name, args=args, become=become)
    about: dict[str, Any] = {"host": member.host.name, "server": member.host.server}
    plan = Plan(run_id=new_run_id(), play="Ask", steps=(task,), check=check, exclusive=exclusive, **about)
    events = fleet.request(member, {"verb": "run", "plan": plan.to_json()}, counted=False)
    done = next(
        (event for event in events if event["event"] == "task_finished" and event["status"] in ("ok", "changed")), None
    )
    if done is None:
        failed = next((event["msg"] for event in events if event["event"] == "task_finished"), "")
        raise recap.error(recap.of(events), failed or "the host gave no answer.")
    return answers.checked(name, done["data"], host=member.host.name)


@contextlib.contextmanager
def host_row(host: str, codes: list[Any], *, json: bool) -> Iterator[None]:
    """Print an error about one host and keep its exit code, so that the other hosts are still shown.

    Args:
        codes: exit codes of the command, one per host.
    """
    try:
        yield
    except BrokenPipeError:
        raise  # the reader is gone
    except Exception as error:
        found = broke(error)
        found.where = found.where or host
        say_error(found, json=json, host=host)
        codes.append(found.exit)


def in_turn(selection: Selection, act: Callable[[Member], Exit], *, json: bool) -> list[Exit]:
    """Act on one host after the other. An error is printed and gives the host's exit code. Closes the fleet."""
    codes: list[Exit] = []
    try:
        for member in selection.fleet.members:
            with host_row(member.host.name, codes, json=json):
                codes.append(act(member))
    finally:
        selection.fleet.close()
    return codes
