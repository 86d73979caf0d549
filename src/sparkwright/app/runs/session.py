"""Runs of a playbook: user files become plans, the plans go to the hosts, and the events go to the console."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from sparkwright.app.connect import Selection, machines
from sparkwright.app.plans import clusters
from sparkwright.app.plans.host_plan import Planner
from sparkwright.app.plans.plan_cache import CachedPlan, Place
from sparkwright.app.runs.presenters import Listener, Shown, ending
from sparkwright.app.runs.rollout import RolloutOptions, RolloutRun
from sparkwright.console.out import say, say_json
from sparkwright.errors import Refused
from sparkwright.fleet.member import Member, run_request
from sparkwright.fleet.rollout import Roll
from sparkwright.project import playbook, recipe
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook.selection import task_lines
from sparkwright.protocol.events import Event
from sparkwright.protocol.plan import Plan, Task, new_run_id, who
from sparkwright.visible import listed

#: time limit of --wait in seconds, longer than any deploy takes
WAIT_S = 4 * 3600.0
#: options that are variables of the playbook, with their defaults
SWITCHES = {"rollback": True, "new_baseline": False, "keep": False, "undo": False, "anyway": False}


def options(**given: Any) -> playbook.Options:
    """Convert a command's options to the compiler's."""
    return playbook.Options(
        check=given["check"],
        diff=given["diff"],
        tags=tuple(listed(given["tags"])),
        skip_tags=tuple(listed(given["skip_tags"])),
        start_at_task=given["start_at_task"],
        who=who(),
        wait_s=WAIT_S if given["wait"] else 0,
        extra={name: given[name] for name, usual in SWITCHES.items() if given.get(name, usual) != usual},
    )


def run(
    selection: Selection,
    book: str,
    given: playbook.Options,
    rolling: RolloutOptions,
    *,
    json: bool,
    verbose: bool = False,
    place: Place | None = None,
    on_event: Listener | None = None,
) -> list[int]:
    """Run a playbook on the selected hosts. Return each host's exit code, and one more if the run was stopped.

    Args:
        place: place of the cached plan of this command.
        on_event: see `Shown`.
    """
    read = playbook.load(clusters.path_of(selection, book), selection.project.root)
    if not any(play.uses({*recipe.RECIPE_NAMES, *recipe.PINNED_NAMES}) for play in read.plays):
        selection = machines(selection)
        selection.fleet.connect()
    fleet, codes = selection.fleet, list[int]()
    rollout = RolloutRun(selection, read, given, rolling)
    shown = Shown(
        selection, json=json, diff=given.diff, check=given.check, rows=True, verbose=verbose, on_event=on_event
    )
    with ending(fleet, rollout.left_behind), contextlib.closing(rollout):
        if rollout.may_begin():
            for n, play in enumerate(read.plays):
                roll = rollout.roll(n)
                made = _play(selection, play, given, shown, roll)
                if place is not None and len(read.plays) == 1 and clusters.is_one(selection) and roll.guard is None:
                    place.keep(made, fleet.members)
        codes = rollout.tell()
    codes += [member.recap["exit"] for member in fleet.members if member.recap is not None]
    if codes:
        return codes
    idle = ", ".join(host.name for host in selection.hosts)
    raise Refused(f"no play of {book} is for {idle}.", fix="Look at `hosts:` in the playbook.")


def ask(selection: Selection, header: dict[str, Any], *, json: bool, on_event: Listener | None = None) -> list[int]:
    """Send a request to each selected host and show the events. Return the exit codes.

    Args:
        on_event: see `Shown`.
    """
    fleet = selection.fleet
    Shown(selection, json=json, diff=False, on_event=on_event)
    fleet.ask(lambda member: fleet.request(member, header))
    return fleet.codes()


def one_task(selection: Selection, module: str, args: dict[str, Any], *, read_only: bool, json: bool) -> list[int]:
    """Run one module on each selected host, shown as a task of a play.

    Args:
        read_only: the module changes nothing, and needs no lock.
    """
    name = module.replace("_", " ")
    task = Task(id=module, name=name, module=module, args=args)
    return tasks(selection, name, lambda host: (task,), exclusive=not read_only, json=json)


def tasks(
    selection: Selection,
    play: str,
    steps: Callable[[Host], tuple[Task, ...]],
    *,
    exclusive: bool,
    json: bool,
    check: bool = False,
) -> list[int]:
    """Run tasks on each selected host, shown as a play.

    Args:
        exclusive: hold the host's lock.
        check: change nothing.
    """
    fleet = selection.fleet
    Shown(selection, json=json, diff=False)

    def run_on(member: Member) -> list[Event]:
        host = member.host
        about: dict[str, Any] = {"check": check, "exclusive": exclusive, "who": who(), "server": host.server}
        plan = Plan(new_run_id(), host.name, play, steps(host), **about)
        return fleet.request(member, run_request(member, plan))

    fleet.ask(run_on)
    return fleet.codes()


def list_tasks(book: str, given: playbook.Options, *, json: bool) -> None:
    """Print the tasks of a playbook with their tags, after --tags and --skip-tags. No host is touched."""
    project = Project.here()
    plays = playbook.list_tasks(playbook.load(project.playbook(book), project.root), given)
    if json:
        say_json({"plays": plays})
    for line in [] if json else task_lines(plays):
        say(line)


def _play(
    selection: Selection, play: playbook.Play, given: playbook.Options, shown: Shown, roll: Roll
) -> Mapping[str, CachedPlan]:
    """Run one play. Return `Planner.made`."""
    here = {name for host in selection.inventory.match(play.hosts) for name in (host.name, host.machine)}
    hosts = [member.host for member in selection.fleet.members if member.host.name in here]
    planner = Planner(selection, play, given, shown.serves)
    try:
        selection.fleet.play(play.name, hosts, planner.plan, roll, planner.preview)
    finally:
        planner.close()
    planner.learn_engines()
    return planner.made
