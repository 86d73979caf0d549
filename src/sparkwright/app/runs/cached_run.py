"""A run of a plan that an earlier run left behind (app/plans/plan_cache.py): the same tasks, notes and panel, nothing planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sparkwright.app.connect import Begun, Reached
from sparkwright.app.plans.plan_cache import Made, Place
from sparkwright.app.runs.ending import ending
from sparkwright.app.runs.presenters import Shown
from sparkwright.errors import Refused
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.fleet.rollout import Roll
from sparkwright.project.folder import Project
from sparkwright.project.inventory import secret_source
from sparkwright.project.rollout_policy import RolloutPolicy
from sparkwright.protocol.plan import Plan, new_run_id, who
from sparkwright.remote.ssh import ssh_config


def place_of(playbook: str, given: Mapping[str, Any]) -> Place:
    """Where the plan of a command is kept. given: the command's options."""
    return Place(Project.here().root, playbook, given)


def find(begun: Begun, place: Place) -> Made | None:
    """The plan of the one host that connecting has begun to, if nothing that it was made from has changed."""
    if len(begun.hosts) != 1:
        return None
    found = place.find()
    if found is None or found.host.way != begun.hosts[0].way or found.host.name != begun.hosts[0].name:
        return None
    try:
        login = found.host.user or ssh_config.resolve(found.host).user
    except Refused:
        return None  # the link says why
    return found if login == found.user else None


def run(begun: Begun, made: Made, *, diff: bool, json: bool) -> list[int]:
    """Run it. Returns the host's exit code. Raises as `session.run`."""
    member = Member(made.host)
    fleet = Fleet([member])
    shown = Shown(Reached(Project.here(), [made.host], fleet), json=json, diff=diff, rows=True)
    with ending(fleet):
        begun.give([member])
        fleet.play(made.plan.play, [made.host], lambda one: _planned(fleet, one, made, shown), Roll(RolloutPolicy()))
        if _learnt(member, made):
            _keep_engine(fleet, member, made)
    return fleet.codes()


def _planned(fleet: Fleet, member: Member, made: Made, shown: Shown) -> Plan:
    """What planning does beside the plan, and the plan as a run of its own."""
    keys = {name: secret_source.server_key(source, where) for name, (source, where) in made.keys.items()}
    member.secrets = secret_source.of(made.host) | keys
    member.restart = made.restart
    if made.serves is not None:
        shown.serves(made.serves)
    for note in made.notes:
        fleet.tell(member, note)
    return replace(made.plan, run_id=new_run_id(), who=who())


def _learnt(member: Member, made: Made) -> bool:
    """Whether a host said of its engine what spark.lock does not."""
    if not member.engine_version or not made.host.recipe:
        return False
    known = made.engine.get("engine_version"), made.engine.get("options")
    return known != (member.engine_version, member.engine_options or known[1])


def _keep_engine(fleet: Fleet, member: Member, made: Made) -> None:
    from sparkwright.app.plans.pinning import Pins
    from sparkwright.project import recipe

    root = Project.here().root
    pins = Pins(root, save=made.plan.exclusive and not made.plan.check)
    pins.learn_engine(fleet, member, recipe.load(root, str(made.host.recipe)))
