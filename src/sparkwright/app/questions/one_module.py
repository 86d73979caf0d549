"""One module, asked of one host: what it found, checked."""

from __future__ import annotations

from typing import Any

from sparkwright.app.questions import answers
from sparkwright.fleet.fleet import Fleet, Member
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
    plan = Plan(run_id=new_run_id(), host=member.host.name, play="Ask", steps=(task,), check=check, exclusive=exclusive)
    events = fleet.request(member, {"verb": "run", "plan": plan.to_json()}, counted=False)
    done = next((one for one in events if one["event"] == "task_finished" and one["status"] in ("ok", "changed")), None)
    if done is None:
        raise recap.error(recap.of(events))
    return answers.checked(name, done["data"], host=member.host.name)
