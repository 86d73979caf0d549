"""An order becomes an experiment, the experiment a play on the host; its cells come back as results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.app.bench.experiment_folder import Collector, Place
from sparkwright.app.connect import Chosen
from sparkwright.app.plans import recipes
from sparkwright.app.plans.pinning import Pins, lock_folder
from sparkwright.app.questions.one_module import ask_module
from sparkwright.app.runs import session
from sparkwright.app.runs.presenters import Shown
from sparkwright.bench import arms as lab_arms
from sparkwright.bench import play
from sparkwright.bench.arms import Arm
from sparkwright.bench.experiment import Experiment, order_of, turns
from sparkwright.bench.order import Order, Room, planned
from sparkwright.bench.results_models import Results
from sparkwright.engines.log.settings import judged
from sparkwright.errors import Exit, Refused
from sparkwright.fleet.member import Member
from sparkwright.fleet.rollout import Roll
from sparkwright.program import typed
from sparkwright.project import playbook, recipe
from sparkwright.project.inventory.host import Host
from sparkwright.project.rollout_policy import RolloutPolicy
from sparkwright.protocol.plan import Plan, new_run_id, who


def on_host(chosen: Chosen, order: Order, *, json: bool, wait: bool) -> tuple[Results | None, int, Path]:
    """Do an order on one host. Returns the results (None when nothing was begun), the exit code and their folder."""
    if len(chosen.hosts) != 1:
        raise Refused("an experiment runs on one host.", fix="--host NAME")
    host = chosen.hosts[0]
    bench = _Bench(chosen, order, host, wait=wait)
    Shown(chosen, json=json, diff=False)
    try:
        chosen.fleet.play("Bench", [host], bench.plan_for, Roll(RolloutPolicy()))
    finally:
        chosen.fleet.close()
    recap = chosen.fleet.members[0].recap
    return bench.ended(int(recap["exit"]) if recap else int(Exit.FAILED))


class _Bench:
    """The play of one order, made when the host has told what is known there."""

    def __init__(self, chosen: Chosen, order: Order, host: Host, *, wait: bool) -> None:
        self.chosen = chosen
        self.order = order
        self.host = host
        self.root = chosen.project.root
        self.wait = wait
        self.production = recipes.recipe_of(chosen.project, host)
        self.base = recipe.load(self.root, order.recipe) if order.recipe else self.production
        self.place = Place.of(self.root, order.name or f"{order.command}-{host.name}", again=order.again)
        self.collector: Collector | None = None

    def ended(self, code: int) -> tuple[Results | None, int, Path]:
        """The results, the exit code and the folder."""
        if self.collector is None:
            return None, code, self.place.folder
        found = self.collector
        same = any(note.startswith("the flag does nothing") for note in found.notes)
        if code == 0 and (found.complete or same):
            self.place.mark(finished=True)
        elif code == 0:
            code = int(Exit.FAILED if found.failed else Exit.INCONCLUSIVE)
        return found.results(), code, self.place.folder

    def plan_for(self, member: Member) -> Plan:
        """Everything that files, lock and host know, as one plan."""
        run_id, fleet = new_run_id(), self.chosen.fleet
        member.secrets = self.chosen.inventory.secrets(member.host)
        pins = Pins(lock_folder(self.chosen.project, member.host), save=True)
        pinned = {"": pins.complete(fleet, member, self.production, run_id)}
        arms = self._arms(pins.complete(fleet, member, self.base, run_id))
        member.secrets |= self.production.secrets()
        for arm in arms:
            member.secrets |= arm.recipe.secrets()
            pinned[arm.name] = pins.complete(fleet, member, arm.recipe, run_id)
        experiment = self._experiment(arms, pinned)
        self.collector = self._collector(experiment, arms, pinned)
        fleet.subscribers.append(self.collector)
        tasks, known = self._tasks(member, experiment, pinned)
        path = self.place.folder / "play.yml"
        path.write_text(typed(play.text(tasks, member.host.name, experiment.name)))
        names = {
            **recipe.scope(member.host, recipes.user_of(member.host), self.production, pinned[""]),
            "arms": {arm.name: self._names(arm, pinned[arm.name]) for arm in arms},
            "arms_known": known,
            "loads": {cell.key: cell.load.to_json() for turn in experiment.turns for cell in turn.cells},
        }
        options = playbook.Options(who=who(), wait_s=session.WAIT_S if self.wait else 0)
        one = playbook.load(path).plays[0]
        return playbook.compile(one, member.host, names, options, run_id=run_id, project=self.root)

    def _arms(self, pinned: Mapping[str, Any]) -> list[Arm]:
        order = self.order
        if not order.has_arms:
            return [lab_arms.as_it_runs(self.production)]
        if order.a:
            found = lab_arms.pair(recipe.load(self.root, order.a), recipe.load(self.root, order.b))
        elif order.flag:
            found = lab_arms.flag(self.base, order.flag, pinned)
        else:
            found = lab_arms.sweep(self.base, order.sizes, pinned)
        return [lab_arms.named(arm, self.production.file.container.name) for arm in found]

    def _experiment(self, arms: Sequence[Arm], pinned: Mapping[str, Mapping[str, Any]]) -> Experiment:
        runs = [arm for arm in arms if not self.order.has_arms or lab_arms.refusal(arm, pinned[arm.name]) is None]
        loads = planned(self.order, Room.of([arm.effective(pinned[arm.name]) for arm in runs]), Path.cwd())
        identities = {arm.name: self._names(arm, pinned[arm.name])["serve"]["baseline_key"] for arm in runs}
        compares = self.order.command != "sweep"
        one_is_out = compares and self.order.has_arms and len(runs) < 2
        names = [] if one_is_out else [arm.name for arm in runs]
        notes = ("one arm alone is no comparison: nothing was measured",) if one_is_out else ()
        sequence = order_of(names, self.order.repeat, pair=compares and len(names) == 2)
        made = turns(sequence, loads.loads, identities)
        return Experiment(self.order.command, self.place.folder.name, tuple(arms), made, (*loads.notes, *notes))

    def _collector(
        self, experiment: Experiment, arms: Sequence[Arm], pinned: Mapping[str, Mapping[str, Any]]
    ) -> Collector:
        about = {}
        for arm in arms:
            finding = lab_arms.refusal(arm, pinned[arm.name]) if self.order.has_arms else None
            names = self._names(arm, pinned[arm.name])
            about[arm.name] = {
                "name": arm.name,
                "title": arm.title,
                "recipe": arm.recipe.name,
                "changes": dict(arm.changes),
                "image": names["spec"]["image"],
                "model_id": names["model"]["id"],
                "commit": names["model"]["commit"],
                "flags": dict(names["engine"]["flags"]),
                "max_num_batched_tokens": arm.effective(pinned[arm.name]).budget,
                "refused": {"rule": finding.rule, "sentence": finding.sentence} if finding else None,
            }
        return Collector(self.place, experiment, self.host.name, "host", about)

    def _tasks(
        self, member: Member, experiment: Experiment, pinned: Mapping[str, Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """What is left to do, after the host has said what is finished."""
        assert self.collector is not None
        configs = {arm.name: play.config_key(arm.name) for arm in experiment.arms}
        asked = {"series": self.place.series, "keys": [*experiment.keys, *configs.values()]}
        finished = ask_module(self.chosen.fleet, member, "bench_cells", asked)["cells"]
        for key in filter(finished.__contains__, experiment.keys):
            self.collector.keep(finished[key])
        left = experiment.without(finished)
        settled = {name: finished[key] for name, key in configs.items() if key in finished}
        known = {name: one["settings"] for name, one in settled.items()}
        for name, one in settled.items():
            self.collector.settle(name, one)
        if not self.order.has_arms:
            return play.on_the_server(left, self.place.series), {}
        changed = lab_arms.changed_flags(*experiment.arms[:2]) if experiment.compares else []
        if experiment.compares and len(known) == 2:
            first, second = experiment.arms[:2]
            verdict = judged(known[first.name], known[second.name], changed, second.recipe.engine)
            self.collector.judged({**verdict, "arm": second.name})
            left = replace(left, turns=()) if verdict["same"] else left
        if not left.turns:
            return [{"name": "Gather facts", "facts": None}], {}
        parts = "../" * len(self.place.folder.relative_to(self.root).parts) + "playbooks/parts"
        return play.with_arms(left, self.place.series, parts, known=known, changed=changed), known

    def _names(self, arm: Arm, pinned: Mapping[str, Any]) -> dict[str, Any]:
        """What a play may say of an arm."""
        scope = recipe.scope(self.host, recipes.user_of(self.host), arm.recipe, pinned)
        engine = {**scope["engine"], "platform": arm.recipe.file.platform, "env": scope["container"]["env"]}
        same = {name: scope[name] for name in ("serve", "base_url", "lock")}
        about = {"spec": scope["container"], "model": scope["pinned_model"], "files": scope["recipe_files"]}
        return {**same, **about, "engine": engine}
