"""The play of an experiment on a cluster, which every member runs, with barriers between the runs.

A member that fails also fails all later barriers (decision 18), so an arm that does not start ends the play: all members restore
the previous server, and the caller starts another play for the remaining arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.bench import play
from sparkwright.bench.experiment import Experiment, Turn
from sparkwright.bench.play import ARM, NAME, Task, measured, task, value, values
from sparkwright.errors import Refused
from sparkwright.project.inventory.groups import Cluster

#: maximum number of turns, because the runs of a cluster can meet at 200 barriers and a turn takes six
MOST_TURNS = 30
#: how long a worker waits for the head's figures of a turn, in seconds
MEASURED_S = 24 * 3600
#: file with the part that fetches an arm
FETCH = "fetch_arm.yml"
#: name under which a failed arm is registered, after which turns are skipped. A failed rescue would end the rescue of all
#: members, so the run fails only after all have restored their servers
FAILED = "failed_arm"
SKIPPED = f"({FAILED} | default({{'arm': ''}}))"
ENDED = "the experiment has ended"
VARS: Mapping[str, Any] = {
    "head": "{{ host.cluster.rank == 0 }}",
    "turn": "",
    "because": ENDED,
    "regroup": "{{ restored.cluster != '' and not others.failed and 'touched' in others.any"
    " and others.alike.group | sort == restored.members | sort }}",
}
#: of a play with arms; who has image and model is as in playbooks/cluster/deploy.yml
OF_ARMS: Mapping[str, Any] = {
    "because": value(f"({FAILED} | default({{'why': ''}})).why or {ENDED!r}"),
    "image_giver": "{{ compared.first.has_image | default(compared.members | first) }}",
    "image_lacking": "{{ (compared.members | length) - (compared.count.has_image | default(1)) }}",
    "giver": "{{ compared.first.has_model | default(compared.members | first) }}",
    "lacking": "{{ (compared.members | length) - (compared.count.has_model | default(1)) }}",
}


def text(tasks: list[Task], cluster: Cluster, name: str) -> str:
    """Return a playbook with these tasks."""
    fetches = any(str(task.get("include", "")).endswith(FETCH) for task in tasks)
    return play.text(tasks, cluster.name, name, {**VARS, **(OF_ARMS if fetches else {})})


def nothing_left(parts: str) -> list[Task]:
    """Return the tasks for a finished experiment, which restore the previous server if an interrupted run did not."""
    share = {"arm": "{{ cleared.changed }}"}
    return [
        task("Gather facts", "facts"),
        task("Remove last arm", "clear_arm", NAME, register="cleared"),
        _met("Learn whether an arm was left", "left", share=share, register="left"),
        {**_restored(parts), "when": "'arm' in left.any"},
    ]


def _restored(parts: str) -> Task:
    return {"include": f"{parts}/restore.yml", "vars": {"back": "restored after the lab"}}


def with_arms(
    experiment: Experiment, series: str, parts: str, *, known: Mapping[str, Mapping[str, Any]], changed: Sequence[str]
) -> list[Task]:
    """Return the tasks of `play.with_arms` for all members of a cluster. Raises Refused for more turns than their runs can meet
    for.

    Args:
        experiment: the experiment.
        series: name of the series.
        parts: path from the playbook to playbooks/cluster/parts.
        known: settings that were read earlier, by arm.
        changed: flags in which two arms differ.
    """
    taken = play.taken(experiment, known)
    if len(taken.turns) > MOST_TURNS:
        message = f"{len(taken.turns)} starts of a cluster in one experiment: at most {MOST_TURNS} can be."
        raise Refused(message, fix="Give fewer values, or a smaller --repeat.")
    lab = _Lab(experiment, series, parts, taken, changed)
    may = [f"{lab.refused(name)!r} not in checked.any" for name in taken.names]
    block = {
        "name": "Measure the arms",
        "when": (" and " if experiment.compares else " or ").join(may),
        "block": [lab.turn(turn, number) for number, turn in enumerate(taken.turns)],
        "always": [
            task("Wait for the Docker Engine", "docker_ready"),
            task("Remove last arm", "clear_arm", NAME),
            _restored(parts),
        ],
    }
    end = task("End the experiment", "fail", {"msg": value(f"{FAILED}.why")}, when=f"{SKIPPED}.arm != ''")
    return [
        task("Gather facts", "facts"),
        *lab.prepared(),
        *_freed(),
        block,
        *play.after("head and host.gateways"),
        end,
    ]


def _freed() -> Iterator[Task]:
    yield task("Unload Ollama's models", "ollama_unload", {"mode": "{{ ollama }}"}, register="ollama_had")
    yield play.drained(when="head")


@dataclass(frozen=True)
class _Lab:
    """The turns of the arms on all members."""

    experiment: Experiment
    series: str
    parts: str
    taken: play.Taken
    #: flags in which two arms differ
    changed: Sequence[str]

    def refused(self, arm: str) -> str:
        """Return the name under which a member reports that its image refuses an arm or that the arm does not fit."""
        return f"refused_{self._place(arm)}"

    def prepared(self) -> Iterator[Task]:
        """Yield the checks and downloads that run while the cluster still serves, after which members agree on refused arms."""
        yield self._fabric()
        yield from play.fits(self.experiment, self.taken.names)
        for arm in play.distinct(self.experiment, self.taken.names):
            to_serve = value(f"arms[{arm.name!r}]")
            engine = value(f"arms[{arm.name!r}].engine.name")
            about = {"to_serve": to_serve, "engine_inside": engine, "turn": f" for arm {arm.name}"}
            yield {"include": f"{self.parts}/{FETCH}", "vars": about}
        for name in self.taken.names:
            yield play.linted(name, f"lint_{self._place(name)}")
        share = {
            self.refused(name): value(f"lint_{place}.failed or {play.fits_register(self.experiment, name)}.failed")
            for name in self.taken.names
            for place in [self._place(name)]
        }
        yield _met("Wait until every member has passed its checks", "checked", share=share, register="checked")

    def turn(self, turn: Turn, number: int) -> Task:
        """Return an arm's turn, in which the head measures while the workers wait and watch their own ranks."""
        arm, judged = turn.arm, self.taken.judged
        conditions, when = [f"{self.refused(arm)!r} not in checked.any", f"{SKIPPED}.arm == ''"], ["head"]
        if judged is not None and number > judged:
            conditions.append(f"'same' not in ready_{judged}.any")
        if number == judged:
            when.append(f"'same' not in ready_{judged}.any")
        config = play.config_args(turn, number, self.series, self.taken, self.changed)
        share = {"same": value(f"(config_{number} | default({{}})).same | default(false)")}
        why = "{{ failed_result.msg }}"
        rank = {"rank_of": "{{ to_serve.spec.name }}"}
        ready = {**rank, "share": share, "timeout_s": "{{ to_serve.serve.ready_s + 300 }}"}
        return {
            "name": f"Arm {arm}: {play.title(self.experiment, arm)}",
            "vars": {"to_serve": value(f"arms[{arm!r}]"), "turn": f" {number + 1}"},
            "when": conditions,
            "block": [
                {"include": f"{self.parts}/arm.yml"},
                task("Read engine settings", "engine_config", config, register=f"config_{number}", when="head"),
                _met("Wait until the arm is ready", f"ready {number + 1}", register=f"ready_{number}", **ready),
                *({**measured(cell, self.series, ARM), "when": when} for cell in turn.cells),
                _met("Wait until the head has measured", f"measured {number + 1}", **rank, timeout_s=MEASURED_S),
            ],
            "rescue": [
                task("Collect incident diagnostics", "incident", {**NAME, "why": why}, ignore_errors=True),
                task(f"Skip arm {arm}", "bench_failed", {"arm": arm, "why": why}, register=FAILED),
            ],
        }

    def _place(self, arm: str) -> int:
        return play.place(self.experiment, arm)

    def _fabric(self) -> Task:
        own = "host.cluster.addresses[host.name]"
        found = {"name": "container.name", "host": "host.name", "address": own}
        found |= {"interfaces": "host.cluster.interfaces", "adapters": "host.cluster.adapters"}
        found["peers"] = f"host.cluster.addresses.values() | reject('equalto', {own}) | list"
        found["port"] = "host.cluster.port if head else 0"
        return task("Check the fabric", "fabric_ready", values(found))


def _met(title: str, name: str, *, register: str = "", **args: Any) -> Task:
    """Return the task of a barrier."""
    return task(title, "barrier", {"name": name, **args}, **({"register": register} if register else {}))
