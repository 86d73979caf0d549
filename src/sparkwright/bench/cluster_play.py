"""The play of an experiment on a cluster. Every member runs it, and barriers keep the runs in step.

A member that fails also fails all later barriers (decision 18), so an arm that does not start ends the play: all members restore
the previous server, and the caller starts another play for the remaining arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.bench import play
from sparkwright.bench.experiment import Experiment, Turn
from sparkwright.bench.play import ARM_ARGUMENTS, NAME_ARGUMENTS, Task, as_template, as_templates, measure_task, task
from sparkwright.errors import Refused
from sparkwright.project.inventory.groups import Cluster

#: maximum number of turns, because a cluster's runs may use at most 200 barriers and a turn takes six
MAX_TURNS = 30
#: maximum time that a worker waits for the head to measure a turn
MEASURE_TIMEOUT_S = 24 * 3600
#: file with the tasks that fetch an arm
FETCH_FILE = "fetch_arm.yml"
#: name under which a failed arm is registered; later turns are then skipped. A failed rescue would end the rescue of all members,
#: so the run does not fail until all have restored their servers
FAILED_ARM_REGISTER = "failed_arm"
FAILED_ARM_EXPRESSION = f"({FAILED_ARM_REGISTER} | default({{'arm': ''}}))"
ENDED_REASON = "the experiment has ended"
PLAY_VARS: Mapping[str, Any] = {
    "head": "{{ host.cluster.rank == 0 }}",
    "turn": "",
    "because": ENDED_REASON,
    "regroup": "{{ restored.cluster != '' and not others.failed and 'touched' in others.any"
    " and others.alike.group | sort == restored.members | sort }}",
}
#: additional variables of a play with arms; `image_giver` and `giver` are chosen as in playbooks/cluster/deploy.yml
ARM_VARS: Mapping[str, Any] = {
    "because": as_template(f"({FAILED_ARM_REGISTER} | default({{'why': ''}})).why or {ENDED_REASON!r}"),
    "image_giver": "{{ compared.first.has_image | default(compared.members | first) }}",
    "image_lacking": "{{ (compared.members | length) - (compared.count.has_image | default(1)) }}",
    "giver": "{{ compared.first.has_model | default(compared.members | first) }}",
    "lacking": "{{ (compared.members | length) - (compared.count.has_model | default(1)) }}",
}


def render_play(tasks: list[Task], cluster: Cluster, name: str) -> str:
    """Return a playbook with these tasks."""
    fetches_arms = any(str(task.get("include", "")).endswith(FETCH_FILE) for task in tasks)
    return play.render_play(tasks, cluster.name, name, {**PLAY_VARS, **(ARM_VARS if fetches_arms else {})})


def finished_tasks(parts_path: str) -> list[Task]:
    """Return the tasks for a finished experiment, which restore the previous server if an interrupted run did not."""
    share = {"arm": "{{ cleared.changed }}"}
    return [
        task("Gather facts", "facts"),
        task("Remove last arm", "clear_arm", NAME_ARGUMENTS, register="cleared"),
        _barrier_task("Check whether an arm was left", "left", share=share, register="left"),
        {**_restore_task(parts_path), "when": "'arm' in left.any"},
    ]


def _restore_task(parts_path: str) -> Task:
    return {"include": f"{parts_path}/restore.yml", "vars": {"back": "restored after the lab"}}


def arm_tasks(
    experiment: Experiment,
    series: str,
    parts_path: str,
    *,
    known_settings: Mapping[str, Mapping[str, Any]],
    changed_flags: Sequence[str],
) -> list[Task]:
    """Return the tasks of `play.arm_tasks` for all members of a cluster. Raises Refused if there are more than MAX_TURNS turns.

    Args:
        parts_path: path from the playbook to playbooks/cluster/parts.
        known_settings: settings that were read earlier, by arm.
        changed_flags: flags in which two arms differ.
    """
    remaining = play.remaining_turns(experiment, known_settings)
    if len(remaining.turns) > MAX_TURNS:
        message = f"{len(remaining.turns)} starts of a cluster in one experiment: at most {MAX_TURNS} are possible."
        raise Refused(message, fix="Give fewer values, or a smaller --repeat.")
    builder = _TurnBuilder(experiment, series, parts_path, remaining, changed_flags)
    conditions = [f"{builder.refused_register(name)!r} not in checked.any" for name in remaining.names]
    block = {
        "name": "Measure the arms",
        "when": (" and " if experiment.compares else " or ").join(conditions),
        "block": [
            *play.free_memory_tasks(when="head"),
            *(builder.build_turn(turn, number) for number, turn in enumerate(remaining.turns)),
        ],
        "always": [
            task("Wait for the Docker Engine", "docker_ready"),
            task("Remove last arm", "clear_arm", NAME_ARGUMENTS),
            _restore_task(parts_path),
            *play.return_tasks("head and host.gateways"),
        ],
    }
    fail_task = task(
        "End the experiment",
        "fail",
        {"msg": as_template(f"{FAILED_ARM_REGISTER}.why")},
        when=f"{FAILED_ARM_EXPRESSION}.arm != ''",
    )
    return [task("Gather facts", "facts"), *builder.preparation_tasks(), block, fail_task]


@dataclass(frozen=True)
class _TurnBuilder:
    """Builds the tasks of the arms' turns on all members."""

    experiment: Experiment
    series: str
    parts_path: str
    remaining: play.RemainingTurns
    #: flags in which two arms differ
    changed_flags: Sequence[str]

    def refused_register(self, arm: str) -> str:
        """Return the name under which a member reports that its image refuses an arm, or that the arm does not fit in memory."""
        return f"refused_{self._arm_index(arm)}"

    def preparation_tasks(self) -> Iterator[Task]:
        """Yield the checks and downloads that run while the cluster still serves, and a barrier that shares refused arms."""
        yield self._fabric_task()
        yield from play.fit_tasks(self.experiment, self.remaining.names)
        for arm in play.distinct_arms(self.experiment, self.remaining.names):
            to_serve = as_template(f"arms[{arm.name!r}]")
            engine = as_template(f"arms[{arm.name!r}].engine.name")
            variables = {"to_serve": to_serve, "engine_inside": engine, "turn": f" for arm {arm.name}"}
            yield {"include": f"{self.parts_path}/{FETCH_FILE}", "vars": variables}
        for name in self.remaining.names:
            yield play.lint_task(name, f"lint_{self._arm_index(name)}")
        share = {
            self.refused_register(name): as_template(
                f"lint_{self._arm_index(name)}.failed or {play.fits_register(self.experiment, name)}.failed"
            )
            for name in self.remaining.names
        }
        yield _barrier_task("Wait until every member has passed its checks", "checked", share=share, register="checked")

    def build_turn(self, turn: Turn, number: int) -> Task:
        """Return an arm's turn: the head measures, while the workers wait and watch their own ranks."""
        arm, compared_turn = turn.arm, self.remaining.compared_turn
        conditions, measure_conditions = (
            [f"{self.refused_register(arm)!r} not in checked.any", f"{FAILED_ARM_EXPRESSION}.arm == ''"],
            ["head"],
        )
        if compared_turn is not None and number > compared_turn:
            conditions.append(f"'same' not in ready_{compared_turn}.any")
        if number == compared_turn:
            measure_conditions.append(f"'same' not in ready_{compared_turn}.any")
        config = play.config_arguments(turn, number, self.series, self.remaining, self.changed_flags)
        share = {"same": as_template(f"(config_{number} | default({{}})).same | default(false)")}
        reason = "{{ failed_result.msg }}"
        rank_arguments = {"rank_of": "{{ to_serve.spec.name }}"}
        ready_arguments = {**rank_arguments, "share": share, "timeout_s": "{{ to_serve.serve.ready_s + 300 }}"}
        return {
            "name": f"Arm {arm}: {play.arm_title(self.experiment, arm)}",
            "vars": {"to_serve": as_template(f"arms[{arm!r}]"), "turn": f" {number + 1}"},
            "when": conditions,
            "block": [
                {"include": f"{self.parts_path}/arm.yml"},
                task("Read engine settings", "engine_config", config, register=f"config_{number}", when="head"),
                _barrier_task(
                    "Wait until the arm is ready", f"ready {number + 1}", register=f"ready_{number}", **ready_arguments
                ),
                *(
                    {**measure_task(cell, self.series, ARM_ARGUMENTS), "when": measure_conditions}
                    for cell in turn.cells
                ),
                _barrier_task(
                    "Wait until the head has measured",
                    f"measured {number + 1}",
                    **rank_arguments,
                    timeout_s=MEASURE_TIMEOUT_S,
                ),
            ],
            "rescue": [
                task("Collect incident diagnostics", "incident", {**NAME_ARGUMENTS, "why": reason}, ignore_errors=True),
                task(f"Skip arm {arm}", "bench_failed", {"arm": arm, "why": reason}, register=FAILED_ARM_REGISTER),
            ],
        }

    def _arm_index(self, arm: str) -> int:
        return play.arm_index(self.experiment, arm)

    def _fabric_task(self) -> Task:
        own_address_expression = "host.cluster.addresses[host.name]"
        expressions = {"name": "container.name", "host": "host.name", "address": own_address_expression}
        expressions |= {"interfaces": "host.cluster.interfaces", "adapters": "host.cluster.adapters"}
        expressions["peers"] = f"host.cluster.addresses.values() | reject('equalto', {own_address_expression}) | list"
        expressions["port"] = "host.cluster.port if head else 0"
        return task("Check the fabric", "fabric_ready", as_templates(expressions))


def _barrier_task(title: str, name: str, *, register: str = "", **args: Any) -> Task:
    """Return the task of a barrier."""
    return task(title, "barrier", {"name": name, **args}, **({"register": register} if register else {}))
