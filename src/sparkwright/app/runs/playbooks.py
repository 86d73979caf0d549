"""Running a playbook on the hosts of a pattern, with the options of a command."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sparkwright.app.connect import PendingConnections, SelectedHosts, checked, left_of, need_of, with_recipe
from sparkwright.app.plans.plan_cache import CachedPlan, Place
from sparkwright.app.runs.presenters import Listener, Shown, ending
from sparkwright.errors import Refused
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.fleet.rollout import Roll
from sparkwright.project.folder import Project
from sparkwright.project.inventory import secret_source
from sparkwright.project.rollout_policy import RolloutPolicy
from sparkwright.protocol.cluster import TOKEN, new_token
from sparkwright.protocol.plan import Plan, new_run_id, who
from sparkwright.remote.ssh import ssh_config
from sparkwright.secret import Secret

if TYPE_CHECKING:
    from sparkwright.app.connect import Selection

#: options of a rolling run
ROLLING = ("canary", "serial", "max_fail_percentage", "resume", "skip_unreachable")


def run(playbook: str, command: str, *, on_event: Listener | None = None, **given: Any) -> list[int]:
    """Run a playbook and return the exit codes, one per host.

    Args:
        command: the command without the program's name, for example `restart`, which is suggested for continuing the run.
        on_event: called with each event instead of printing it.
    """
    given["check"] = given["check"] or given["dry_run"]
    given["host"] = with_recipe(given["host"], given.pop("recipe", ""))
    if given["list_tasks"]:
        from sparkwright.app.runs import session

        session.list_tasks(playbook, session.options(**given), json=given["json"])
        return []
    pattern = left_of(playbook, given["host"]) if given.get("resume") else given["host"]
    pending = PendingConnections(pattern, need_of(playbook))

    place = place_of(playbook, given)
    plans = find_cached_run(pending, place)
    if plans:
        return run_cached_run(
            pending,
            plans,
            diff=given["diff"],
            check=given["check"],
            json=given["json"],
            verbose=given["verbose"],
            on_event=on_event,
        )
    selection = checked(pending)
    behind = playbook == "deploy" and bool(selection.inventory.gateways)
    if behind:
        _refuse_conflicts(selection)
    from sparkwright.app.runs import session
    from sparkwright.app.runs.rollout import RolloutOptions

    rolling = RolloutOptions(command, **{name: given[name] for name in ROLLING if name in given})
    options = session.options(**given)
    codes = session.run(
        selection,
        playbook,
        options,
        rolling,
        json=given["json"],
        verbose=given["verbose"],
        place=place,
        on_event=on_event,
    )
    if not behind:
        return codes
    from sparkwright.app.runs import gateway

    return codes + gateway.deploy_behind(selection, given, on_event)


def _refuse_conflicts(selection: Selection) -> None:
    """Raise Refused, before any host is asked, for what the gateways in front of these servers could not route."""
    from sparkwright.project.gateway_routes import refuse_conflicts

    deployed = {member.host.name for member in selection.fleet.members}
    machines = {member.host.machine for member in selection.fleet.members}
    for gateway in selection.inventory.gateways.values():
        if machines & {*gateway.members}:
            refuse_conflicts(selection.project.root, selection.inventory, gateway, deployed)


def place_of(playbook: str, given: Mapping[str, Any]) -> Place:
    """Return the place of a command's cached plans. given: the command's options."""
    return Place(Project.here().root, playbook, given)


def find_cached_run(pending: PendingConnections, place: Place) -> list[CachedPlan]:
    """Return the cached plans of the pending hosts, if their inputs are unchanged; otherwise none.

    Returns none for a cluster with an unreachable member, as a run with planning reports that.
    """
    found = place.find()
    if not found or {cached_plan.host.name: cached_plan.host.way for cached_plan in found} != {
        host.name: host.way for host in pending.hosts
    }:
        return []
    if not all(map(_same_login, found)) or (len(found) > 1 and not pending.reached()):
        return []
    return found


def _same_login(made: CachedPlan) -> bool:
    try:
        return made.user == (made.host.user or ssh_config.resolve(made.host).user)
    except Refused:
        return False  # the connection reports the reason


def run_cached_run(
    pending: PendingConnections,
    made: Sequence[CachedPlan],
    *,
    diff: bool,
    check: bool,
    json: bool,
    verbose: bool,
    on_event: Listener | None = None,
) -> list[int]:
    """Run cached plans and return each host's exit code. Raises as `session.run` does.

    Args:
        on_event: see `Shown`.
    """
    hosts = [cached_plan.host for cached_plan in made]
    fleet = Fleet([Member(host) for host in hosts])
    shown = Shown(
        SelectedHosts(Project.here(), hosts, fleet),
        json=json,
        diff=diff,
        check=check,
        rows=True,
        verbose=verbose,
        on_event=on_event,
    )
    again = _Again(fleet, made, shown)
    with ending(fleet):
        pending.give(fleet.members)
        fleet.play(made[0].plan.play, hosts, again.plan, Roll(RolloutPolicy(max_fail_percentage=100)))
        for member, cached_plan in zip(fleet.members, made, strict=True):
            if _learnt(member, cached_plan):
                _keep_engine(fleet, member, cached_plan)
    return fleet.codes()


class _Again:
    """Preparation of a host for a cached plan: secrets, restart plan, notes and panel. May be called from several threads."""

    def __init__(self, fleet: Fleet, made: Sequence[CachedPlan], shown: Shown) -> None:
        self._fleet, self._shown = fleet, shown
        self._made = {cached_plan.host.name: cached_plan for cached_plan in made}
        self._token = new_token()
        self._keys: dict[str, Secret] = {}
        self._one_by_one = threading.Lock()

    def plan(self, member: Member) -> Plan:
        """Return a member's plan with a run id of its own."""
        made = self._made[member.host.name]
        with self._one_by_one:
            member.secrets = secret_source.of(made.host) | self._server_keys(made)
        member.secrets |= {TOKEN: self._token} if made.plan.cluster else {}
        member.restart = made.restart
        if made.serves is not None:
            self._shown.serves(made.serves)
        for note in made.notes:
            self._fleet.tell(member, note)
        return replace(made.plan, run_id=new_run_id(), who=who())

    def _server_keys(self, made: CachedPlan) -> dict[str, Secret]:
        """Return the server's keys. Each key is read once for all hosts, as its command may ask the user."""
        for name, (source, where) in made.keys.items():
            if name not in self._keys:
                self._keys[name] = secret_source.server_key(source, where)
        return {name: self._keys[name] for name in made.keys}


def _learnt(member: Member, made: CachedPlan) -> bool:
    """Return True if a host reported something about its engine that spark.lock does not hold."""
    if not member.engine_version or not made.host.recipe:
        return False
    known = made.engine.get("engine_version"), made.engine.get("options")
    return known != (member.engine_version, member.engine_options or known[1])


def _keep_engine(fleet: Fleet, member: Member, made: CachedPlan) -> None:
    from sparkwright.app.plans.pins import Pins
    from sparkwright.project import recipe

    root = Project.here().root
    pins = Pins(root, save=made.plan.exclusive and not made.plan.check)
    pins.learn_engine(fleet, member, recipe.load(root, str(made.host.recipe)))
