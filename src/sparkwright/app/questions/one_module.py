"""One module, asked of one host: what it found, checked. And hosts one after the other, where a person is asked for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sparkwright.app.connect import Chosen
from sparkwright.app.questions import answers
from sparkwright.console.out import say_error
from sparkwright.errors import Exit, SparkwrightError
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.protocol import recap
from sparkwright.protocol.plan import Plan, Task, new_run_id


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
    """Run one module and return what it found. Raises Failed with the host's words and exit code.

    check: it only looks. exclusive: it holds the host's lock, as a deploy does. become: as root.
    """
    task = Task(id=name, name=name.replace("_", " "), module=name, args=args, become=become)
    about: dict[str, Any] = {"host": member.host.name, "server": member.host.server}
    plan = Plan(run_id=new_run_id(), play="Ask", steps=(task,), check=check, exclusive=exclusive, **about)
    events = fleet.request(member, {"verb": "run", "plan": plan.to_json()}, counted=False)
    done = next((one for one in events if one["event"] == "task_finished" and one["status"] in ("ok", "changed")), None)
    if done is None:
        raise recap.error(recap.of(events))
    return answers.checked(name, done["data"], host=member.host.name)


def in_turn(chosen: Chosen, act: Callable[[Member], Exit], *, json: bool) -> list[Exit]:
    """Act on one host after the other. An error is told, and its exit code is that of its host. Closes the fleet."""
    codes = []
    try:
        for member in chosen.fleet.members:
            try:
                codes.append(act(member))
            except SparkwrightError as error:
                error.where = error.where or member.host.name
                say_error(error, json=json, host=member.host.name)
                codes.append(error.exit)
    finally:
        chosen.fleet.close()
    return codes
