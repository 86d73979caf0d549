"""Plan an experiment for a host, or for each member of a cluster, and run it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.experiment_folder import ExperimentFolder, ResultsCollector
from sparkwright.app.outcome import worst_exit_code
from sparkwright.app.plans import clusters, recipes, server_context
from sparkwright.app.plans.pins import Pins, lock_folder
from sparkwright.app.queries.host_requests import query_module
from sparkwright.app.runs import session
from sparkwright.app.runs.presenters import RunOutput
from sparkwright.bench import cluster_play, play
from sparkwright.bench import experiment as lab_arms
from sparkwright.bench.bench_options import BenchOptions, LoadLimits, plan_loads
from sparkwright.bench.experiment import Arm, Experiment, build_turns, order_arms
from sparkwright.bench.results_file import Results
from sparkwright.engines.log.resolution import compare_dumps
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.fleet.member import Member
from sparkwright.fleet.rollout import PlayRollout
from sparkwright.program import rewrite_commands
from sparkwright.project import playbook, recipe
from sparkwright.project.inventory import secret_source
from sparkwright.project.inventory.host import Host
from sparkwright.project.rollout_policy import RolloutPolicy
from sparkwright.protocol.cluster import TOKEN_SECRET, new_token
from sparkwright.protocol.plan import Plan, new_run_id, user_at_host

#: results (None if there are none), exit code and folder
Outcome = tuple[Results | None, int, Path]


class BenchRun:
    """The experiment of a bench command.

    It is planned once the host, or the cluster's head, has reported its finished cells.

    Args:
        failed_arms: arms to leave out because they failed in an earlier run of this command, with the reasons.
    """

    def __init__(
        self, selection: Selection, options: BenchOptions, *, wait: bool, failed_arms: Mapping[str, str] | None = None
    ) -> None:
        self.selection = selection
        self.options = options
        self.cluster = clusters.find_cluster(selection) if options.has_arms else None
        self.failed_arms = dict(failed_arms or {})
        names = [member.host.name for member in selection.fleet.members]
        self.head = selection.fleet.members[names.index(self.cluster.head) if self.cluster else 0]
        self.host = self.head.host
        self.title = self.cluster.name if self.cluster else self.host.name
        self.root = selection.project.root
        self.wait = wait
        self.served_recipe = recipes.load_host_recipe(selection.project, self.host)
        #: recipe that the arms modify
        self.base_recipe = recipe.load(self.root, options.recipe) if options.recipe else self.served_recipe
        name = options.name or f"{options.command}-{self.title.replace('/', '-')}"
        self.folder = ExperimentFolder.open(self.root, name, start_over=options.again)
        self.collector: ResultsCollector | None = None
        self._plans: dict[str, Plan] = {}
        self._planning_error: SparkwrightError | None = None
        self._planning_lock = threading.Lock()

    def conclude(self, code: int) -> Outcome:
        """Return the outcome of a run that ended with this exit code."""
        if self.collector is None:
            return None, code, self.folder.path
        collector = self.collector
        arms_are_equal = any(note.startswith("the flag does nothing") for note in collector.notes)
        if code == 0 and (collector.is_complete or arms_are_equal) and not collector.has_failures:
            self.folder.save_progress(finished=True)
        elif code == 0:
            code = int(Exit.FAILED if collector.has_failures else Exit.INCONCLUSIVE)
        return collector.results() if collector.has_results else None, code, self.folder.path

    def list_new_failures(self) -> dict[str, str]:
        """Return the arms that failed in this run, with the reasons."""
        arms = self.collector.arms if self.collector else {}
        return {name: arm["failed"] for name, arm in arms.items() if arm.get("failed") and name not in self.failed_arms}

    def can_continue(self) -> bool:
        """Return True for a sweep with unmeasured cells, if every member has restored its previous server."""
        if self.collector is None or self.options.command != "sweep":
            return False
        return self.collector.has_cells_left and self.collector.restored_hosts == {
            host.name for host in self.selection.hosts
        }

    def plan_for(self, member: Member) -> Plan:
        """Return the plan of a host.

        The plans of all members are made together, so that no member starts if one of the plans is refused.
        """
        with self._planning_lock:
            if self._planning_error is not None:
                raise self._planning_error
            if not self._plans:
                try:
                    self._plans = self._compile_plans()
                except SparkwrightError as error:
                    self._planning_error = error
                    raise
        return self._plans[member.host.name]

    def _compile_plans(self) -> dict[str, Plan]:
        """Return the plan of each host, by host name."""
        run_id, fleet, member = new_run_id(), self.selection.fleet, self.head
        member.secrets = secret_source.read_secrets(self.host)
        pins = Pins(lock_folder(self.selection.project, self.host), save=True)
        pins_by_arm = {"": pins.complete(fleet, member, self.served_recipe, run_id)}
        arms = self._build_arms(pins.complete(fleet, member, self.base_recipe, run_id))
        server_secrets = self.served_recipe.secrets()
        for arm in arms:
            server_secrets |= arm.recipe.secrets()
            pins_by_arm[arm.name] = pins.complete(fleet, member, arm.recipe, run_id)
        experiment = self._build_experiment(arms, pins_by_arm)
        self.collector = self._build_collector(experiment, arms, pins_by_arm)
        tasks, known_settings = self._build_tasks(member, experiment)
        fleet.subscribers.append(self.collector)
        path = self.folder.path / "play.yml"
        cluster_play_text = cluster_play.render_play(tasks, self.cluster, experiment.name) if self.cluster else None
        path.write_text(rewrite_commands(cluster_play_text or play.render_play(tasks, self.host.name, experiment.name)))
        loads = {cell.key: cell.load.to_json() for turn in experiment.turns for cell in turn.cells}
        loaded_play = playbook.load(path, self.root).plays[0]
        cluster_secrets = {TOKEN_SECRET: new_token()} if self.cluster else {}
        options = playbook.Options(who=user_at_host(), wait_s=session.MAX_LOCK_WAIT_S if self.wait else 0)
        plans = {}
        for target in fleet.members:
            host = target.host
            target.secrets = {**secret_source.read_secrets(host), **server_secrets, **cluster_secrets}
            variables = {
                **recipe.scope(
                    host,
                    recipes.login_user(host),
                    self.served_recipe,
                    pins_by_arm[""],
                    **server_context.build_scope_arguments(self.selection, host),
                ),
                "arms": {arm.name: self._arm_variables(arm, pins_by_arm[arm.name], host) for arm in arms},
                "arms_known": known_settings,
                "loads": loads,
            }
            plan = playbook.compile(loaded_play, host, variables, options, run_id=new_run_id(), project=self.root)
            plans[host.name] = clusters.add_barrier(plan, host) if self.cluster else plan
        return plans

    def _build_arms(self, base_pins: Mapping[str, Any]) -> list[Arm]:
        options = self.options
        if not options.has_arms:
            return [lab_arms.running_arm(self.served_recipe)]
        if options.a:
            arms = lab_arms.recipe_arms(recipe.load(self.root, options.a), recipe.load(self.root, options.b))
        elif options.flag:
            arms = lab_arms.flag_arms(self.base_recipe, options.flag, base_pins)
        elif options.axes and options.command != "sweep":
            arms = lab_arms.value_arms(self.base_recipe, options.axes[0], base_pins)
        elif options.axes:
            arms = lab_arms.grid_arms(self.base_recipe, options.axes, base_pins)
        else:
            arms = lab_arms.sweep_arms(self.base_recipe, options.max_num_batched_tokens, base_pins)
        return [lab_arms.with_container_name(arm, self.served_recipe.file.container.name) for arm in arms]

    def _build_experiment(self, arms: Sequence[Arm], pins_by_arm: Mapping[str, Mapping[str, Any]]) -> Experiment:
        refusals = {
            arm.name: lab_arms.find_refusal(arm, pins_by_arm[arm.name]) for arm in arms if self.options.has_arms
        }
        runnable_arms = [arm for arm in arms if refusals.get(arm.name) is None]
        if not runnable_arms and (finding := next(filter(None, refusals.values()), None)):
            raise Refused(f"the engine would refuse every arm: {finding.sentence}", fix="Pass other values.")
        runnable_arms = [arm for arm in runnable_arms if arm.name not in self.failed_arms]
        loads = plan_loads(
            self.options,
            LoadLimits.from_arms([arm.effective_settings(pins_by_arm[arm.name]) for arm in runnable_arms]),
            Path.cwd(),
        )
        identity_by_arm = {
            arm.name: self._arm_variables(arm, pins_by_arm[arm.name], self.host)["serve"]["baseline_key"]
            for arm in runnable_arms
        }
        is_comparison = self.options.command != "sweep"
        is_single_arm = is_comparison and self.options.has_arms and len(runnable_arms) < 2
        compared_arms = [] if is_single_arm else [arm.name for arm in runnable_arms]
        notes = ("nothing was measured: only one arm can run, so there is nothing to compare",) if is_single_arm else ()
        arm_order = order_arms(compared_arms, self.options.repeat, pair=is_comparison and len(compared_arms) == 2)
        planned_turns = build_turns(arm_order, loads.loads, identity_by_arm)
        return Experiment(
            self.options.command, self.folder.path.name, tuple(arms), planned_turns, (*loads.notes, *notes)
        )

    def _build_collector(
        self, experiment: Experiment, arms: Sequence[Arm], pins_by_arm: Mapping[str, Mapping[str, Any]]
    ) -> ResultsCollector:
        arms_data = {}
        for arm in arms:
            finding = lab_arms.find_refusal(arm, pins_by_arm[arm.name]) if self.options.has_arms else None
            variables = self._arm_variables(arm, pins_by_arm[arm.name], self.host)
            arms_data[arm.name] = {
                "name": arm.name,
                "title": arm.title,
                "recipe": arm.recipe.name,
                "changes": dict(arm.changes),
                "at": dict(arm.swept_values),
                "image": variables["spec"]["image"],
                "model_id": variables["model"]["id"],
                "commit": variables["model"]["commit"],
                "flags": dict(variables["engine"]["flags"]),
                "max_num_batched_tokens": arm.effective_settings(pins_by_arm[arm.name]).budget,
                "refused": {"rule": finding.rule, "sentence": finding.sentence} if finding else None,
            }
            arms_data[arm.name] |= {"failed": self.failed_arms[arm.name]} if arm.name in self.failed_arms else {}
        head = self.cluster.head if self.cluster else ""
        return ResultsCollector(self.folder, experiment, self.title, "host", arms_data, head_name=head)

    def _build_tasks(self, member: Member, experiment: Experiment) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the tasks for the cells that the host has not finished yet, and the known settings by arm name."""
        assert self.collector is not None
        config_keys = {arm.name: play.config_key(arm.name) for arm in experiment.arms}
        query = {"series": self.folder.series, "keys": experiment.keys, "settings": list(config_keys.values())}
        finished_cells = query_module(self.selection.fleet, member, "bench_cells", query)["cells"]
        for key in filter(finished_cells.__contains__, experiment.keys):
            self.collector.add_cell(finished_cells[key])
        remaining_experiment = experiment.remove_finished(finished_cells)
        finished_configs = {name: finished_cells[key] for name, key in config_keys.items() if key in finished_cells}
        known_settings = {name: value["settings"] for name, value in finished_configs.items()}
        for name, value in finished_configs.items():
            self.collector.store_arm_state(name, value)
        playbooks_folder = "../" * len(self.folder.path.relative_to(self.root).parts) + "playbooks"
        if not self.options.has_arms:
            parts_folder, takes_turns = f"{playbooks_folder}/parts", bool(self.host.turns)
            series = self.folder.series
            return play.server_tasks(remaining_experiment, series, parts_folder, takes_turns=takes_turns), {}
        changed_flags = lab_arms.changed_flags(*experiment.arms[:2]) if experiment.compares else []
        if experiment.compares and len(known_settings) == 2:
            first, second = experiment.arms[:2]
            verdict = compare_dumps(
                known_settings[first.name], known_settings[second.name], changed_flags, second.recipe.engine
            )
            self.collector.note_comparison({**verdict, "arm": second.name})
            remaining_experiment = replace(remaining_experiment, turns=()) if verdict["same"] else remaining_experiment
        play_module: ModuleType = cluster_play if self.cluster else play
        parts_folder = (
            f"{playbooks_folder}/{clusters.CLUSTER_FOLDER}/parts" if self.cluster else f"{playbooks_folder}/parts"
        )
        if not remaining_experiment.turns:
            return play_module.finished_tasks(parts_folder), {}
        return play_module.arm_tasks(
            remaining_experiment,
            self.folder.series,
            parts_folder,
            known_settings=known_settings,
            changed_flags=changed_flags,
        ), known_settings

    def _arm_variables(self, arm: Arm, pins: Mapping[str, Any], host: Host) -> dict[str, Any]:
        """Return the variables of an arm that are available to a host's play."""
        scope = recipe.scope(host, recipes.login_user(host), arm.recipe, pins)
        file = arm.recipe.file
        container_facts = {
            "platform": file.platform,
            "network": scope["recipe"]["container"]["network"],
            "env": scope["container"]["env"],
        }
        engine = {**scope["engine"], **container_facts}
        shared_variables = {name: scope[name] for name in ("serve", "base_url", "lock")}
        arm_variables = {"spec": scope["container"], "model": scope["pinned_model"], "files": scope["recipe_files"]}
        return {**shared_variables, **arm_variables, "engine": engine}


def run_on_host(selection: Selection, options: BenchOptions, *, json: bool, wait: bool) -> Outcome:
    """Run an experiment on one host."""
    if len(selection.hosts) != 1:
        raise Refused(f"an experiment runs on one host, got {len(selection.hosts)}.", fix="Pass --host NAME.")
    return _run(BenchRun(selection, options, wait=wait), json=json)


def run_on_cluster(
    selection: Selection, options: BenchOptions, reconnect: Callable[[], Selection], *, json: bool, wait: bool
) -> Outcome:
    """Run an experiment whose arms span all members of a cluster.

    A failed arm ends the run, because every member then restores its previous server. A sweep then continues with the
    remaining arms in another run, after `reconnect`.
    """
    failed_arms: dict[str, str] = {}
    while True:
        bench = BenchRun(selection, options, wait=wait, failed_arms=failed_arms)
        outcome = _run(bench, json=json)
        new_failures = bench.list_new_failures()
        if not new_failures or not bench.can_continue():
            return outcome
        failed_arms |= new_failures
        options, selection = replace(options, again=False), reconnect()


def _run(bench: BenchRun, *, json: bool) -> Outcome:
    fleet = bench.selection.fleet
    RunOutput(bench.selection, json=json, diff=False)
    try:
        if bench.cluster is None or not fleet.wait_for_connections():
            members = fleet.begin("Bench", bench.selection.hosts)
            fleet.roll(members, bench.plan_for, PlayRollout(RolloutPolicy(max_fail_percentage=100)))
    finally:
        fleet.close()
    codes = [int(member.recap["exit"]) for member in fleet.members if member.recap]
    return bench.conclude(int(worst_exit_code(codes)) if codes else int(Exit.FAILED))
