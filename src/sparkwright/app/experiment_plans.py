"""Plans of an experiment, for a host or for each member of a cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from sparkwright.app.connect import Selection
from sparkwright.app.experiment_folder import Collector, Place
from sparkwright.app.outcome import worst
from sparkwright.app.plans import clusters, recipes, server_context
from sparkwright.app.plans.pins import Pins, lock_folder
from sparkwright.app.questions.host_requests import ask_module
from sparkwright.app.runs import session
from sparkwright.app.runs.presenters import Shown
from sparkwright.bench import cluster_play, play
from sparkwright.bench import experiment as lab_arms
from sparkwright.bench.experiment import Arm, Experiment, order_of, turns
from sparkwright.bench.order import Order, Room, planned
from sparkwright.bench.results_file import Results
from sparkwright.engines.log.resolution import judged
from sparkwright.errors import Exit, Refused, SparkwrightError
from sparkwright.fleet.member import Member
from sparkwright.fleet.rollout import Roll
from sparkwright.program import typed
from sparkwright.project import playbook, recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.rollout_policy import RolloutPolicy
from sparkwright.protocol.cluster import TOKEN, new_token
from sparkwright.protocol.plan import Plan, new_run_id, who


class Bench:
    """The experiment of one bench command.

    It is planned as soon as the host, or the cluster's head, has reported its finished cells.

    Args:
        failed: arms that failed in an earlier run of this command, with the reason; they are left out.
    """

    def __init__(
        self, selection: Selection, order: Order, *, wait: bool, failed: Mapping[str, str] | None = None
    ) -> None:
        self.chosen = selection
        self.order = order
        self.cluster = clusters.one_of(selection) if order.has_arms else None
        self.failed = dict(failed or {})
        names = [member.host.name for member in selection.fleet.members]
        self.head = selection.fleet.members[names.index(self.cluster.head) if self.cluster else 0]
        self.host = self.head.host
        self.title = self.cluster.name if self.cluster else self.host.name
        self.root = selection.project.root
        self.wait = wait
        self.production = recipes.recipe_of(selection.project, self.host)
        self.base = recipe.load(self.root, order.recipe) if order.recipe else self.production
        name = order.name or f"{order.command}-{self.title.replace('/', '-')}"
        self.place = Place.of(self.root, name, again=order.again)
        self.collector: Collector | None = None
        self._plans: dict[str, Plan] = {}
        self._refused: SparkwrightError | None = None
        self._one_by_one = threading.Lock()

    def ended(self, code: int) -> tuple[Results | None, int, Path]:
        """Return the results, the exit code and the folder."""
        if self.collector is None:
            return None, code, self.place.folder
        found = self.collector
        same = any(note.startswith("the flag does nothing") for note in found.notes)
        if code == 0 and (found.complete or same) and not found.failed:
            self.place.mark(finished=True)
        elif code == 0:
            code = int(Exit.FAILED if found.failed else Exit.INCONCLUSIVE)
        return found.results(), code, self.place.folder

    def failed_now(self) -> dict[str, str]:
        """Return the arms that failed in this run, with the reasons."""
        arms = self.collector.arms if self.collector else {}
        return {name: arm["failed"] for name, arm in arms.items() if arm.get("failed") and name not in self.failed}

    def goes_on(self) -> bool:
        """Return True if another run can measure the remaining cells.

        That is the case for a sweep once every member has restored its previous server.
        """
        found = self.collector
        left = found is not None and found.left
        restored = found.restored if found else set()
        return bool(left) and self.order.command == "sweep" and restored == {host.name for host in self.chosen.hosts}

    def plan_for(self, member: Member) -> Plan:
        """Return the plan of a host.

        The plans of a cluster's members are made together, so that no member starts if one of the plans fails.
        """
        with self._one_by_one:
            if self._refused is not None:
                raise self._refused
            if not self._plans:
                try:
                    self._plans = self._all_plans()
                except SparkwrightError as error:
                    self._refused = error
                    raise
        return self._plans[member.host.name]

    def _all_plans(self) -> dict[str, Plan]:
        """Return the plan of each host, by host name."""
        run_id, fleet, member = new_run_id(), self.chosen.fleet, self.head
        member.secrets = self.chosen.inventory.secrets(self.host)
        pins = Pins(lock_folder(self.chosen.project, self.host), save=True)
        pinned = {"": pins.complete(fleet, member, self.production, run_id)}
        arms = self._arms(pins.complete(fleet, member, self.base, run_id))
        keys = self.production.secrets()
        for arm in arms:
            keys |= arm.recipe.secrets()
            pinned[arm.name] = pins.complete(fleet, member, arm.recipe, run_id)
        experiment = self._experiment(arms, pinned)
        self.collector = self._collector(experiment, arms, pinned)
        tasks, known = self._tasks(member, experiment, pinned)
        fleet.subscribers.append(self.collector)
        path = self.place.folder / "play.yml"
        made = cluster_play.text(tasks, self.cluster, experiment.name) if self.cluster else None
        path.write_text(typed(made or play.text(tasks, self.host.name, experiment.name)))
        loads = {cell.key: cell.load.to_json() for turn in experiment.turns for cell in turn.cells}
        value, token = playbook.load(path, self.root).plays[0], {TOKEN: new_token()} if self.cluster else {}
        options = playbook.Options(who=who(), wait_s=session.WAIT_S if self.wait else 0)
        plans = {}
        for each in fleet.members:
            host = each.host
            each.secrets = {**self.chosen.inventory.secrets(host), **keys, **token}
            names = {
                **recipe.scope(
                    host, recipes.user_of(host), self.production, pinned[""], **server_context.of(self.chosen, host)
                ),
                "arms": {arm.name: self._names(arm, pinned[arm.name], host) for arm in arms},
                "arms_known": known,
                "loads": loads,
            }
            plan = playbook.compile(value, host, names, options, run_id=new_run_id(), project=self.root)
            plans[host.name] = clusters.met(plan, host) if self.cluster else plan
        return plans

    def _arms(self, pinned: Mapping[str, Any]) -> list[Arm]:
        order = self.order
        if not order.has_arms:
            return [lab_arms.as_it_runs(self.production)]
        if order.a:
            found = lab_arms.pair(recipe.load(self.root, order.a), recipe.load(self.root, order.b))
        elif order.flag:
            found = lab_arms.flag(self.base, order.flag, pinned)
        elif order.axes and order.command != "sweep":
            found = lab_arms.values_pair(self.base, order.axes[0], pinned)
        elif order.axes:
            found = lab_arms.grid(self.base, order.axes, pinned)
        else:
            found = lab_arms.sweep(self.base, order.sizes, pinned)
        return [lab_arms.named(arm, self.production.file.container.name) for arm in found]

    def _experiment(self, arms: Sequence[Arm], pinned: Mapping[str, Mapping[str, Any]]) -> Experiment:
        why = {arm.name: lab_arms.refusal(arm, pinned[arm.name]) for arm in arms if self.order.has_arms}
        runs = [arm for arm in arms if why.get(arm.name) is None]
        if not runs and (finding := next(filter(None, why.values()), None)):
            raise Refused(f"the engine would start none of the arms: {finding.sentence}", fix="Give other values.")
        runs = [arm for arm in runs if arm.name not in self.failed]
        loads = planned(self.order, Room.of([arm.effective(pinned[arm.name]) for arm in runs]), Path.cwd())
        identities = {arm.name: self._names(arm, pinned[arm.name], self.host)["serve"]["baseline_key"] for arm in runs}
        compares = self.order.command != "sweep"
        one_is_out = compares and self.order.has_arms and len(runs) < 2
        names = [] if one_is_out else [arm.name for arm in runs]
        notes = ("one arm alone is not a comparison: nothing was measured",) if one_is_out else ()
        sequence = order_of(names, self.order.repeat, pair=compares and len(names) == 2)
        made = turns(sequence, loads.loads, identities)
        return Experiment(self.order.command, self.place.folder.name, tuple(arms), made, (*loads.notes, *notes))

    def _collector(
        self, experiment: Experiment, arms: Sequence[Arm], pinned: Mapping[str, Mapping[str, Any]]
    ) -> Collector:
        about = {}
        for arm in arms:
            finding = lab_arms.refusal(arm, pinned[arm.name]) if self.order.has_arms else None
            names = self._names(arm, pinned[arm.name], self.host)
            about[arm.name] = {
                "name": arm.name,
                "title": arm.title,
                "recipe": arm.recipe.name,
                "changes": dict(arm.changes),
                "at": dict(arm.at),
                "image": names["spec"]["image"],
                "model_id": names["model"]["id"],
                "commit": names["model"]["commit"],
                "flags": dict(names["engine"]["flags"]),
                "max_num_batched_tokens": arm.effective(pinned[arm.name]).budget,
                "refused": {"rule": finding.rule, "sentence": finding.sentence} if finding else None,
            }
            about[arm.name] |= {"failed": self.failed[arm.name]} if arm.name in self.failed else {}
        head = self.cluster.head if self.cluster else ""
        return Collector(self.place, experiment, self.title, "host", about, head=head)

    def _tasks(
        self, member: Member, experiment: Experiment, pinned: Mapping[str, Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Return the tasks of the cells that the host has not finished yet."""
        assert self.collector is not None
        configs = {arm.name: play.config_key(arm.name) for arm in experiment.arms}
        query = {"series": self.place.series, "keys": [*experiment.keys, *configs.values()]}
        finished = ask_module(self.chosen.fleet, member, "bench_cells", query)["cells"]
        for key in filter(finished.__contains__, experiment.keys):
            self.collector.keep(finished[key])
        left = experiment.without(finished)
        settled = {name: finished[key] for name, key in configs.items() if key in finished}
        known = {name: value["settings"] for name, value in settled.items()}
        for name, value in settled.items():
            self.collector.settle(name, value)
        books = "../" * len(self.place.folder.relative_to(self.root).parts) + "playbooks"
        if not self.order.has_arms:
            return play.on_the_server(left, self.place.series, f"{books}/parts"), {}
        changed = lab_arms.changed_flags(*experiment.arms[:2]) if experiment.compares else []
        if experiment.compares and len(known) == 2:
            first, second = experiment.arms[:2]
            verdict = judged(known[first.name], known[second.name], changed, second.recipe.engine)
            self.collector.judged({**verdict, "arm": second.name})
            left = replace(left, turns=()) if verdict["same"] else left
        kind: ModuleType = cluster_play if self.cluster else play
        parts = f"{books}/{clusters.FOLDER}/parts" if self.cluster else f"{books}/parts"
        if not left.turns:
            return kind.nothing_left(parts), {}
        return kind.with_arms(left, self.place.series, parts, known=known, changed=changed), known

    def _names(self, arm: Arm, pinned: Mapping[str, Any], host: Host) -> dict[str, Any]:
        """Return the variables of an arm that are available to a host's play."""
        scope = recipe.scope(host, recipes.user_of(host), arm.recipe, pinned)
        file = arm.recipe.file
        about_box = {
            "platform": file.platform,
            "network": scope["recipe"]["container"]["network"],
            "env": scope["container"]["env"],
        }
        engine = {**scope["engine"], **about_box}
        same = {name: scope[name] for name in ("serve", "base_url", "lock")}
        about = {"spec": scope["container"], "model": scope["pinned_model"], "files": scope["recipe_files"]}
        return {**same, **about, "engine": engine}


Outcome = tuple[Results | None, int, Path]


def on_host(selection: Selection, order: Order, *, json: bool, wait: bool) -> Outcome:
    """Run an experiment on one host. Return the results (None if nothing was started), the exit code and the folder."""
    if len(selection.hosts) != 1:
        raise Refused("an experiment runs on one host.", fix="--host NAME")
    return _done(Bench(selection, order, wait=wait), json=json)


def on_cluster(
    selection: Selection, order: Order, again: Callable[[], Selection], *, json: bool, wait: bool
) -> Outcome:
    """Run an experiment whose arms span all members of a cluster. Returns the same as `on_host`.

    A failed arm ends the run, because all members then restore their previous server. A sweep continues with the remaining arms
    in another run.

    Args:
        again: reconnects to the members.
    """
    failed: dict[str, str] = {}
    while True:
        bench = Bench(selection, order, wait=wait, failed=failed)
        outcome = _done(bench, json=json)
        lately = bench.failed_now()
        if not lately or not bench.goes_on():
            return outcome
        failed |= lately
        order, selection = replace(order, again=False), again()


def _done(bench: Bench, *, json: bool) -> Outcome:
    fleet = bench.chosen.fleet
    Shown(bench.chosen, json=json, diff=False)
    try:
        if bench.cluster is None or not fleet.reach():
            members = fleet.begin("Bench", bench.chosen.hosts)
            fleet.roll(members, bench.plan_for, Roll(RolloutPolicy(max_fail_percentage=100)))
    finally:
        fleet.close()
    codes = [int(member.recap["exit"]) for member in fleet.members if member.recap]
    return bench.ended(int(worst(codes)) if codes else int(Exit.FAILED))
