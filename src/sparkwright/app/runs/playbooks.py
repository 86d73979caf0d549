"""Run a playbook, with cached plans if there are any, and deploy the gateways in front of deployed servers."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from sparkwright.app.connect import (
    PendingConnections,
    SelectedHosts,
    complete_selection,
    guess_request_kind,
    remaining_hosts_pattern,
    restrict_to_recipe,
)
from sparkwright.app.plans.plan_cache import PlanCacheEntry, PlannedHost
from sparkwright.app.runs.deploy_options import DeployOptions
from sparkwright.app.runs.presenters import Listener, RunOutput, closing_fleet
from sparkwright.errors import Refused
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member
from sparkwright.fleet.rollout import PlayRollout
from sparkwright.project.folder import Project
from sparkwright.project.inventory import secret_source
from sparkwright.project.rollout_policy import RolloutPolicy
from sparkwright.protocol.cluster import TOKEN_SECRET, new_token
from sparkwright.protocol.plan import new_run_id, user_at_host
from sparkwright.remote.ssh import ssh_config
from sparkwright.secret import Secret

if TYPE_CHECKING:
    from sparkwright.app.connect import Selection
    from sparkwright.project.inventory.host import Host


def run(playbook: str, command: str, options: DeployOptions, *, on_event: Listener | None = None) -> list[int]:
    """Run a playbook and return the exit codes.

    Args:
        command: the command, without the program's name, to suggest for resuming a rolling run.
        on_event: see `RunOutput`.
    """
    host = restrict_to_recipe(options.host, options.recipe)
    options = replace(options, check=options.check or options.dry_run, dry_run=False, host=host, recipe="")
    if options.list_tasks:
        from sparkwright.app.runs import session

        session.list_tasks(playbook, options)
        return []
    pending = PendingConnections(
        remaining_hosts_pattern(playbook, host) if options.resume else host, guess_request_kind(playbook)
    )
    cache_entry = PlanCacheEntry(Project.here().root, playbook, options)
    if cached_plans := find_cached_plans(pending, cache_entry):
        return run_cached_plans(pending, cached_plans, options, on_event)
    selection = complete_selection(pending)
    has_gateways = playbook == "deploy" and bool(selection.inventory.gateways)
    if has_gateways:
        _refuse_conflicts(selection)
    from sparkwright.app.runs import session

    codes = session.run(selection, playbook, command, options, cache_entry=cache_entry, on_event=on_event)
    if not has_gateways:
        return codes
    from sparkwright.app.runs import gateway

    return codes + gateway.redeploy_gateways(selection, options, on_event)


def _refuse_conflicts(selection: Selection) -> None:
    """Raise Refused, before the deploy, if a gateway in front of these servers could not route requests to them."""
    from sparkwright.project.gateway_routes import refuse_conflicts

    deployed = {member.host.name for member in selection.fleet.members}
    machines = {member.host.machine for member in selection.fleet.members}
    for gateway in selection.inventory.gateways.values():
        if machines & {*gateway.members}:
            refuse_conflicts(selection.project.root, selection.inventory, gateway, deployed)


def find_cached_plans(pending: PendingConnections, cache_entry: PlanCacheEntry) -> list[PlannedHost]:
    """Return the cached plans of exactly these hosts; empty if there are none, or if a member of their cluster is unreachable."""
    cached_plans = cache_entry.find()
    if {planned_host.host.name: planned_host.host.connection_settings for planned_host in cached_plans} != {
        host.name: host.connection_settings for host in pending.hosts
    }:
        return []
    if not all(map(_has_same_login, cached_plans)) or (len(cached_plans) > 1 and not pending.wait_until_connected()):
        return []
    return cached_plans


def _has_same_login(planned_host: PlannedHost) -> bool:
    try:
        return planned_host.user == (planned_host.host.user or ssh_config.resolve(planned_host.host).user)
    except Refused:
        return False  # connecting reports the error


def run_cached_plans(
    pending: PendingConnections, cached_plans: Sequence[PlannedHost], options: DeployOptions, on_event: Listener | None
) -> list[int]:
    """Run cached plans and return the exit codes, one per host."""
    hosts = [planned_host.host for planned_host in cached_plans]
    fleet = Fleet([Member(host) for host in hosts])
    output = RunOutput.for_playbook_run(SelectedHosts(Project.here(), hosts, fleet), options, on_event)
    renewed_plans = _RenewedPlans(cached_plans)
    with closing_fleet(fleet):
        pending.assign_links(fleet.members)
        members = fleet.begin(cached_plans[0].plan.play, hosts)
        fleet.roll(
            members,
            lambda member: renewed_plans.plan_for(member.host).prepare_member(member, fleet, output.store_server),
            PlayRollout(RolloutPolicy(max_fail_percentage=100)),
        )
        for member, planned_host in zip(fleet.members, cached_plans, strict=True):
            if _has_new_engine_facts(member, planned_host):
                _save_engine_facts(fleet, member, planned_host)
    return fleet.exit_codes()


class _RenewedPlans:
    """Cached plans for another run, with new run ids and freshly read secrets. Thread-safe."""

    def __init__(self, cached_plans: Sequence[PlannedHost]) -> None:
        self._cached_plans = {planned_host.host.name: planned_host for planned_host in cached_plans}
        self._cluster_token = new_token()
        self._server_key_by_name: dict[str, Secret] = {}
        self._secrets_lock = threading.Lock()

    def plan_for(self, host: Host) -> PlannedHost:
        planned_host = self._cached_plans[host.name]
        with self._secrets_lock:
            secrets = secret_source.read_secrets(planned_host.host) | self._server_keys(planned_host)
        secrets |= {TOKEN_SECRET: self._cluster_token} if planned_host.plan.cluster else {}
        return replace(
            planned_host, secrets=secrets, plan=replace(planned_host.plan, run_id=new_run_id(), who=user_at_host())
        )

    def _server_keys(self, planned_host: PlannedHost) -> dict[str, Secret]:
        """Return the server's API keys, each read once for all hosts, because its command may prompt the user."""
        for name, (source, where) in planned_host.key_sources.items():
            if name not in self._server_key_by_name:
                self._server_key_by_name[name] = secret_source.read_server_key(source, where)
        return {name: self._server_key_by_name[name] for name in planned_host.key_sources}


def _has_new_engine_facts(member: Member, planned_host: PlannedHost) -> bool:
    """Return True if a task read an engine version or options from the image that are not in spark.lock."""
    if not member.engine_version or not planned_host.host.recipe:
        return False
    version, options = planned_host.engine_facts.get("engine_version"), planned_host.engine_facts.get("options")
    return (version, options) != (member.engine_version, member.engine_options or options)


def _save_engine_facts(fleet: Fleet, member: Member, planned_host: PlannedHost) -> None:
    from sparkwright.app.plans.pins import save_engine

    facts = planned_host.engine_facts
    if planned_host.plan.holds_lock:
        save_engine(Project.here().root, fleet, member, str(facts["image"]), str(facts["digest"]))
