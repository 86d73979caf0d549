"""Playbook runs: the user's files become plans, the plans go to the hosts, and the events go to the console."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sparkwright.app.connect import Selection, machines
from sparkwright.app.plans import clusters
from sparkwright.app.plans.host_plan import Planner
from sparkwright.app.plans.plan_cache import Place, PlannedHost
from sparkwright.app.plans.preparation import Peers, Preparation
from sparkwright.app.runs.options import DeployOptions
from sparkwright.app.runs.presenters import Listener, Shown, ending
from sparkwright.app.runs.rollout import RolloutRun
from sparkwright.console.out import say, say_json
from sparkwright.errors import Refused
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member, run_request
from sparkwright.project import playbook, recipe
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook.selection import task_lines
from sparkwright.protocol.events import Event
from sparkwright.protocol.plan import Plan, Task, new_run_id, who
from sparkwright.visible import listed

#: time limit for --wait in seconds, longer than any deploy takes
WAIT_S = 4 * 3600.0


def compiler_options(options: DeployOptions) -> playbook.Options:
    """Convert a command's options to the compiler's."""
    return playbook.Options(
        check=options.check,
        diff=options.diff,
        tags=tuple(listed(options.tags)),
        skip_tags=tuple(listed(options.skip_tags)),
        start_at_task=options.start_at_task,
        who=who(),
        wait_s=WAIT_S if options.wait else 0,
        extra=options.variables(),
    )


def run(
    selection: Selection,
    name: str,
    command: str,
    options: DeployOptions,
    *,
    place: Place | None = None,
    on_event: Listener | None = None,
) -> list[int]:
    """Run a playbook on the selected hosts. Return the hosts' exit codes, and an additional one if the run was stopped.

    Args:
        command: the command to suggest for resuming the run.
        place: cache entry for this command's plans.
        on_event: see `Shown`.
    """
    book = playbook.load(clusters.path_of(selection, name), selection.project.root)
    selection = _servers_or_machines(selection, book)
    fleet, rollout = selection.fleet, RolloutRun(selection, book, command, options)
    shown = Shown.of_run(selection, options, on_event)
    with ending(fleet, rollout.left_behind), contextlib.closing(rollout):
        for n, play in enumerate(book.plays if rollout.may_begin() else ()):
            members = fleet.begin(play.name, _hosts(selection, play))
            prepared = Preparation(selection, play, check=options.check)
            prepared.ask(members)  # before planning, which must not contact any host
            roll = rollout.roll(n)
            with contextlib.closing(Peers(selection.inventory)) as peers:
                plans = _Plans(Planner(selection, play, compiler_options(options), prepared), fleet, peers, shown)
                fleet.roll(members, plans.of, roll, plans.preview)
            prepared.learn_engines()
            if place is not None and len(book.plays) == 1 and clusters.is_one(selection) and roll.guard is None:
                place.keep(plans.made, fleet.members)
        codes = rollout.tell()
    codes += [member.recap["exit"] for member in fleet.members if member.recap is not None]
    if not codes:
        idle = ", ".join(host.name for host in selection.hosts)
        raise Refused(f"no play of {name} is for {idle}.", fix="Look at `hosts:` in the playbook.")
    return codes


class _Plans:
    """The plans of a play, each made when its host is due. Thread-safe."""

    def __init__(self, planner: Planner, fleet: Fleet, peers: Peers, shown: Shown) -> None:
        self._planner, self._fleet, self._peers, self._shown = planner, fleet, peers, shown
        #: plans by host name
        self.made: dict[str, PlannedHost] = {}

    def of(self, member: Member, *, check: bool = False) -> Plan:
        """Return the plan of a host, with the URLs of models that peers hand out."""
        planned = self._planner.plan(member.host, member.registered, check=check)
        plan = planned.take(member, self._fleet, self._shown.serves)
        filled = self._peers.fill(self._fleet, member, plan)
        self.made[member.host.name] = replace(planned, lasting=planned.lasting and filled is plan)
        return filled

    def preview(self, member: Member) -> Plan:
        """Return the plan of a host in check mode."""
        return self.of(member, check=True)


def _servers_or_machines(selection: Selection, book: playbook.Playbook) -> Selection:
    """Return the selected servers, or their machines if no play concerns a server."""
    if any(play.uses({*recipe.RECIPE_NAMES, *recipe.PINNED_NAMES}) for play in book.plays):
        return selection
    selection = machines(selection)
    selection.fleet.connect()
    return selection


def _hosts(selection: Selection, play: playbook.Play) -> list[Host]:
    here = {name for host in selection.inventory.match(play.hosts) for name in (host.name, host.machine)}
    return [member.host for member in selection.fleet.members if member.host.name in here]


def ask(selection: Selection, header: dict[str, Any], *, json: bool, on_event: Listener | None = None) -> list[int]:
    """Send a request to each selected host, show the events, and return the exit codes.

    Args:
        on_event: see `Shown`.
    """
    fleet = selection.fleet
    Shown(selection, json=json, diff=False, on_event=on_event)
    fleet.ask(lambda member: fleet.request(member, header))
    return fleet.codes()


def one_task(selection: Selection, module: str, args: dict[str, Any], *, json: bool) -> list[int]:
    """Run one module on each selected host, and show it as a task of a play."""
    name = module.replace("_", " ")
    task = Task(id=module, name=name, module=module, args=args)
    return tasks(selection, name, lambda host: (task,), exclusive=True, json=json)


def tasks(
    selection: Selection,
    play: str,
    steps: Callable[[Host], tuple[Task, ...]],
    *,
    exclusive: bool,
    json: bool,
    check: bool = False,
) -> list[int]:
    """Run tasks on each selected host, and show them as a play.

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


def list_tasks(book: str, options: DeployOptions) -> None:
    """Print a playbook's tasks and their tags, filtered by --tags and --skip-tags. No host is touched."""
    project = Project.here()
    plays = playbook.list_tasks(playbook.load(project.playbook(book), project.root), compiler_options(options))
    if options.json:
        say_json({"plays": plays})
    for line in [] if options.json else task_lines(plays):
        say(line)
