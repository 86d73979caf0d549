"""Running a playbook on the hosts of a pattern, with the options of a command."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkwright.app.connect import PendingConnections, SelectedHosts, checked, left_of, need_of, with_recipe
from sparkwright.app.plans.plan_cache import Place, PlannedHost
from sparkwright.app.runs.options import DeployOptions
from sparkwright.app.runs.presenters import Listener, Shown, ending
from sparkwright.errors import Refused
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.fleet.rollout import Roll
from sparkwright.project.folder import Project
from sparkwright.project.inventory import secret_source
from sparkwright.project.rollout_policy import RolloutPolicy
from sparkwright.protocol.cluster import TOKEN, new_token
from sparkwright.protocol.plan import new_run_id, who
from sparkwright.remote.ssh import ssh_config
from sparkwright.secret import Secret

if TYPE_CHECKING:
    from sparkwright.app.connect import Selection
    from sparkwright.project.inventory.host import Host


def run(playbook: str, command: str, options: DeployOptions, *, on_event: Listener | None = None) -> list[int]:
    """Run a playbook and return the exit codes, one per host.

    Args:
        command: the command to suggest for resuming the run, without the program's name, for example `restart`.
        on_event: called with each event instead of printing it.
    """
    host = with_recipe(options.host, options.recipe)
    options = replace(options, check=options.check or options.dry_run, dry_run=False, host=host, recipe="")
    if options.list_tasks:
        from sparkwright.app.runs import session

        session.list_tasks(playbook, options)
        return []
    pending = PendingConnections(left_of(playbook, host) if options.resume else host, need_of(playbook))
    place = Place(Project.here().root, playbook, options)
    if kept := find_kept(pending, place):
        return run_kept(pending, kept, options, on_event)
    selection = checked(pending)
    behind = playbook == "deploy" and bool(selection.inventory.gateways)
    if behind:
        _refuse_conflicts(selection)
    from sparkwright.app.runs import session

    codes = session.run(selection, playbook, command, options, place=place, on_event=on_event)
    if not behind:
        return codes
    from sparkwright.app.runs import gateway

    return codes + gateway.deploy_behind(selection, options, on_event)


def _refuse_conflicts(selection: Selection) -> None:
    """Raise Refused, before any host is contacted, if the gateways in front of these servers could not route them."""
    from sparkwright.project.gateway_routes import refuse_conflicts

    deployed = {member.host.name for member in selection.fleet.members}
    machines = {member.host.machine for member in selection.fleet.members}
    for gateway in selection.inventory.gateways.values():
        if machines & {*gateway.members}:
            refuse_conflicts(selection.project.root, selection.inventory, gateway, deployed)


def find_kept(pending: PendingConnections, place: Place) -> list[PlannedHost]:
    """Return the cached plans of the pending hosts if their inputs are unchanged; otherwise an empty list.

    The list is also empty for a cluster with an unreachable member, because a run with planning reports it.
    """
    kept = place.find()
    if {planned.host.name: planned.host.way for planned in kept} != {host.name: host.way for host in pending.hosts}:
        return []
    if not all(map(_same_login, kept)) or (len(kept) > 1 and not pending.reached()):
        return []
    return kept


def _same_login(made: PlannedHost) -> bool:
    try:
        return made.user == (made.host.user or ssh_config.resolve(made.host).user)
    except Refused:
        return False  # the connection reports the reason


def run_kept(
    pending: PendingConnections, kept: Sequence[PlannedHost], options: DeployOptions, on_event: Listener | None
) -> list[int]:
    """Run cached plans and return each host's exit code. Raises as `session.run` does."""
    hosts = [planned.host for planned in kept]
    fleet = Fleet([Member(host) for host in hosts])
    shown = Shown.of_run(SelectedHosts(Project.here(), hosts, fleet), options, on_event)
    renewed = _Renewed(kept)
    with ending(fleet):
        pending.give(fleet.members)
        members = fleet.begin(kept[0].plan.play, hosts)
        plan_for = lambda member: renewed.of(member.host).take(member, fleet, shown.serves)  # noqa: E731
        fleet.roll(members, plan_for, Roll(RolloutPolicy(max_fail_percentage=100)))
        for member, planned in zip(fleet.members, kept, strict=True):
            if _learnt(member, planned):
                _keep_engine(fleet, member, planned)
    return fleet.codes()


class _Renewed:
    """Cached plans prepared for another run, with a new run id and freshly read secrets. Thread-safe."""

    def __init__(self, kept: Sequence[PlannedHost]) -> None:
        self._kept = {planned.host.name: planned for planned in kept}
        self._token = new_token()
        self._keys: dict[str, Secret] = {}
        self._one_by_one = threading.Lock()

    def of(self, host: Host) -> PlannedHost:
        """Return a host's plan."""
        kept = self._kept[host.name]
        with self._one_by_one:
            secrets = secret_source.of(kept.host) | self._server_keys(kept)
        secrets |= {TOKEN: self._token} if kept.plan.cluster else {}
        return replace(kept, secrets=secrets, plan=replace(kept.plan, run_id=new_run_id(), who=who()))

    def _server_keys(self, kept: PlannedHost) -> dict[str, Secret]:
        """Return the server's keys. Each key is read once for all hosts, because its command may prompt the user."""
        for name, (source, where) in kept.keys.items():
            if name not in self._keys:
                self._keys[name] = secret_source.server_key(source, where)
        return {name: self._keys[name] for name in kept.keys}


def _learnt(member: Member, made: PlannedHost) -> bool:
    """Return True if a host reported something about its engine that is not in spark.lock."""
    if not member.engine_version or not made.host.recipe:
        return False
    known = made.engine.get("engine_version"), made.engine.get("options")
    return known != (member.engine_version, member.engine_options or known[1])


def _keep_engine(fleet: Fleet, member: Member, made: PlannedHost) -> None:
    from sparkwright.app.plans.pins import Pins
    from sparkwright.project import recipe

    root = Project.here().root
    pins = Pins(root, save=made.plan.exclusive and not made.plan.check)
    pins.learn_engine(fleet, member, recipe.load(root, str(made.host.recipe)))
