"""Run playbooks, tasks and requests on the selected hosts, and show their events."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from sparkwright.app.connect import Selection, select_machines
from sparkwright.app.plans import clusters
from sparkwright.app.plans.host_plan import Planner
from sparkwright.app.plans.plan_cache import PlanCacheEntry, PlannedHost
from sparkwright.app.plans.preparation import Peers, Preparation
from sparkwright.app.runs.deploy_options import DeployOptions
from sparkwright.app.runs.presenters import Listener, RunOutput, closing_fleet
from sparkwright.app.runs.rollout import RolloutRun
from sparkwright.console.command_output import print_json_line, print_text
from sparkwright.errors import Refused
from sparkwright.fleet.fleet import Fleet
from sparkwright.fleet.member import Member, build_run_request
from sparkwright.project import playbook, recipe
from sparkwright.project.folder import Project
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook.selection import format_tasks
from sparkwright.protocol.events import Event
from sparkwright.protocol.plan import Plan, Task, new_run_id, user_at_host
from sparkwright.visible import parse_list

#: how long `--wait` waits for the host's lock, in seconds; longer than any deploy takes
MAX_LOCK_WAIT_S = 4 * 3600.0


def compiler_options(options: DeployOptions) -> playbook.Options:
    """Convert a command's options to the compiler's."""
    return playbook.Options(
        check=options.check,
        diff=options.diff,
        tags=tuple(parse_list(options.tags)),
        skip_tags=tuple(parse_list(options.skip_tags)),
        start_at_task=options.start_at_task,
        who=user_at_host(),
        wait_s=MAX_LOCK_WAIT_S if options.wait else 0,
        extra=options.variables(),
    )


def run(
    selection: Selection,
    name: str,
    command: str,
    options: DeployOptions,
    *,
    cache_entry: PlanCacheEntry | None = None,
    on_event: Listener | None = None,
) -> list[int]:
    """Run a playbook on the selected hosts. Return the hosts' exit codes, and one for a run that was stopped without a failure.

    Args:
        command: the command to suggest for resuming a rolling run.
        cache_entry: where to save the plans; None to save none.
        on_event: see `RunOutput`.
    """
    loaded_playbook = playbook.load(clusters.playbook_path(selection, name), selection.project.root)
    selection = _select_targets(selection, loaded_playbook)
    fleet, rollout = selection.fleet, RolloutRun(selection, loaded_playbook, command, options)
    output = RunOutput.for_playbook_run(selection, options, on_event)
    with closing_fleet(fleet, rollout.add_resume_hint), contextlib.closing(rollout):
        for n, play in enumerate(loaded_playbook.plays if rollout.can_start() else ()):
            members = fleet.begin(play.name, _play_hosts(selection, play))
            preparation = Preparation(selection, play, check=options.check)
            preparation.query_members(members)
            play_rollout = rollout.build_play_rollout(n, preparation)
            with contextlib.closing(Peers(selection.inventory)) as peers:
                planner = Planner(selection, play, compiler_options(options), preparation)
                plans = _PlayPlans(planner, fleet, peers, output)
                fleet.roll(members, plans.plan_for, play_rollout, partial(plans.plan_for, check=True))
            preparation.save_engines()
            is_cacheable = (
                len(loaded_playbook.plays) == 1 and clusters.is_single_target(selection) and play_rollout.guard is None
            )
            if cache_entry is not None and is_cacheable:
                cache_entry.save(plans.planned_hosts, fleet.members)
        codes = rollout.report_outcome()
    codes += [member.recap["exit"] for member in fleet.members if member.recap is not None]
    codes += fleet.output_codes()
    if not codes:
        host_names = ", ".join(host.name for host in selection.hosts)
        raise Refused(f"no play in {name} is for {host_names}.", fix="Check `hosts:` in the playbook.")
    return codes


class _PlayPlans:
    """The plans of a play, each made just before its host's run. Thread-safe."""

    def __init__(self, planner: Planner, fleet: Fleet, peers: Peers, output: RunOutput) -> None:
        self._planner, self._fleet, self._peers, self._output = planner, fleet, peers, output
        #: plans by host name
        self.planned_hosts: dict[str, PlannedHost] = {}

    def plan_for(self, member: Member, *, check: bool = False) -> Plan:
        """Return the plan of a host, with the URLs of models to copy from peers."""
        planned_host = self._planner.plan(member.host, member.registered, check=check)
        plan = planned_host.prepare_member(member, self._fleet, self._output.store_server)
        plan_with_urls = self._peers.add_peer_urls(self._fleet, member, plan)
        is_cacheable = planned_host.is_cacheable and plan_with_urls is plan
        self.planned_hosts[member.host.name] = replace(planned_host, is_cacheable=is_cacheable)
        return plan_with_urls


def _select_targets(selection: Selection, loaded_playbook: playbook.Playbook) -> Selection:
    """Return the selected servers, or their machines if no play uses a recipe."""
    if any(play.uses({*recipe.RECIPE_NAMES, *recipe.PINNED_NAMES}) for play in loaded_playbook.plays):
        return selection
    selection = select_machines(selection)
    selection.fleet.connect()
    return selection


def _play_hosts(selection: Selection, play: playbook.Play) -> list[Host]:
    play_hosts = {name for host in selection.inventory.match(play.hosts) for name in (host.name, host.machine)}
    return [member.host for member in selection.fleet.members if member.host.name in play_hosts]


def send_request(
    selection: Selection, header: dict[str, Any], *, json: bool, on_event: Listener | None = None
) -> list[int]:
    """Send a request to each selected host, show the events, and return the exit codes. on_event: see `RunOutput`."""
    fleet = selection.fleet
    RunOutput(selection, json=json, diff=False, on_event=on_event)
    fleet.query_all(lambda member: fleet.request(member, header))
    return fleet.exit_codes()


def list_runs(selection: Selection, *, include_read_only: bool, json: bool) -> list[int]:
    """Show the recorded runs of the selected hosts, the newest of all hosts first, and return the exit codes."""
    fleet, header = selection.fleet, {"verb": "runs", "all": include_read_only}
    RunOutput(selection, json=json, diff=False)
    rows: list[Event] = []
    with closing_fleet(fleet):
        fleet.run_parallel(
            fleet.members, lambda member: rows.extend(fleet.request(member, header, withheld_kind="run"))
        )
        runs = [row for row in rows if row["event"] == "run"]
        for row in sorted(runs, key=lambda row: str(row["run"]), reverse=True):  # a run's id begins with its time
            fleet.emit_last_event(row)
    return fleet.exit_codes()


def run_module_task(selection: Selection, module: str, args: dict[str, Any], *, json: bool) -> list[int]:
    """Run a module on each selected host, holding its lock, and show it as a task of a play. Return the exit codes."""
    name = module.replace("_", " ")
    task = Task(id=module, name=name, module=module, args=args)
    return run_tasks(selection, name, lambda host: (task,), exclusive=True, json=json)


def run_tasks(
    selection: Selection,
    play_name: str,
    tasks_for: Callable[[Host], tuple[Task, ...]],
    *,
    exclusive: bool,
    json: bool,
    check: bool = False,
) -> list[int]:
    """Run tasks on each selected host, show them as a play, and return the exit codes.

    Args:
        tasks_for: returns the tasks of a host.
        exclusive: hold the host's lock.
        check: run in check mode.
    """
    fleet = selection.fleet
    RunOutput(selection, json=json, diff=False)

    def run_on(member: Member) -> list[Event]:
        host = member.host
        plan = Plan(
            new_run_id(),
            host.name,
            play_name,
            tasks_for(host),
            check=check,
            exclusive=exclusive,
            who=user_at_host(),
            server=host.server,
        )
        return fleet.request(member, build_run_request(member, plan))

    fleet.query_all(run_on)
    return fleet.exit_codes()


def list_tasks(playbook_name: str, options: DeployOptions) -> None:
    """Print a playbook's tasks and their tags, filtered by --tags and --skip-tags, without contacting any host."""
    project = Project.here()
    plays = playbook.list_tasks(playbook.load(project.playbook(playbook_name), project.root), compiler_options(options))
    if options.json:
        print_json_line({"plays": plays})
        return
    for line in format_tasks(plays):
        print_text(line)
