"""The play of an experiment, written as a playbook beside its results, so that anyone can read what is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sparkwright.bench import play_tasks
from sparkwright.bench.arms import Arm
from sparkwright.bench.experiment import Experiment, Turn
from sparkwright.bench.play_tasks import ARM, NAME, Task, measured, task, value, values
from sparkwright.project import shipped_files

HEAD = (
    shipped_files.line("playbook", depth=2)  # results/NAME/
    + "# Made by `invoke bench.*`. `arms` and `loads` are what the recipes, the lock and the command line make of them.\n"
)


def text(tasks: list[Task], hosts: str, name: str, also: Mapping[str, Any] | None = None) -> str:
    """Return the playbook of these tasks.

    Args:
        tasks: of the play.
        hosts: of the play.
        name: of the play.
        also: variables beside `to_serve`, the previous server.
    """
    production = values({"spec": "container", "model": "pinned_model", "serve": "serve", "base_url": "base_url"})
    play = {"name": f"Bench {name}", "hosts": hosts, "vars": {"to_serve": production, **(also or {})}, "tasks": tasks}
    return HEAD + yaml.safe_dump([play], sort_keys=False, width=130, allow_unicode=True)


def on_the_server(experiment: Experiment, series: str, parts: str) -> list[Task]:
    """Return the tasks that measure the running server.

    Nothing is restarted except a server that the memory guard had to stop.

    Args:
        experiment: the experiment.
        series: name of the series.
        parts: see `with_arms`.
    """
    server = {"base_url": "{{ base_url }}", "model": "{{ served_name }}"}
    compared: Task = {"register": "server", "check_mode": True, "changed_when": False}
    return [
        task("Gather facts", "facts"),
        task("Compare running container with recipe", "container", {"spec": "{{ container }}"}, **compared),
        task("Check that it generates", "verify_health", server),
        task("Read engine settings", "engine_config", NAME, register="config_server", ignore_errors=True),
        {
            "name": "Measure the server",
            "block": [measured(cell, series, server) for turn in experiment.turns for cell in turn.cells],
            "always": list(_started_again(parts)),
        },
    ]


def _started_again(parts: str) -> Iterator[Task]:
    """Yield the tasks that restart the server after a failed measurement has ended it."""
    left: Task = {"register": "left", "check_mode": True, "changed_when": False, "ignore_errors": True}
    failed = "failed_result.failed"
    yield task("Wait for the Docker Engine", "docker_ready", when=failed)
    yield task("Check whether it still runs", "container", {"spec": "{{ container }}"}, when=failed, **left)
    stop = {**NAME, "stop_timeout_s": "{{ serve.stop_timeout_s }}"}
    why = "{{ failed_result.msg }}"
    yield {
        "name": "Start the server again",
        "when": [failed, "left.exists | default(false) and not left.running"],
        "block": [
            task("Collect incident diagnostics", "incident", {**NAME, "why": why}, ignore_errors=True),
            task("Stop it for a clean start", "stopped", stop),
            task("Find how it ran", "restore_previous", {**NAME, "why": why}, register="restored"),
            {
                "include": f"{parts}/serve_again.yml",
                "vars": {"what": "restored after the lab"},
                "when": "restored.to_start",
            },
        ],
    }


def with_arms(
    experiment: Experiment, series: str, parts: str, *, known: Mapping[str, Mapping[str, Any]], changed: Sequence[str]
) -> list[Task]:
    """Return the tasks that start and measure each arm in its turn, and then restore the previous server.

    Args:
        experiment: the experiment.
        series: name of the series.
        parts: path from the playbook to the shared parts.
        known: settings that were read before, by arm.
        changed: flags in which two arms differ.
    """
    found = play_tasks.taken(experiment, known)
    names, lab = found.names, _Lab(experiment, series, parts, found, changed)
    stop = {**NAME, "stop_timeout_s": "{{ serve.stop_timeout_s }}"}
    block = {
        "name": "Measure the arms",
        "when": (" and " if experiment.compares else " or ").join(f"({lab.may_start(name)})" for name in names),
        "block": [
            task("Stop server, keep it for later", "stop_and_keep", stop),
            *(lab.turn(turn, number) for number, turn in enumerate(found.turns)),
        ],
        "always": [
            task("Wait for the Docker Engine", "docker_ready"),
            task("Remove last arm", "clear_arm", NAME),
            task("Restore previous server", "restore_previous", NAME, register="restored"),
            {
                "include": f"{parts}/serve_again.yml",
                "vars": {"what": "restored after the lab"},
                "when": "restored.to_start",
            },
        ],
    }
    return [task("Gather facts", "facts"), *lab.prepared(), *_before(), block, *play_tasks.after()]


def nothing_left(parts: str) -> list[Task]:
    """Return the tasks for when everything is measured: restore the previous server if a run was interrupted before it did."""
    again = {"include": f"{parts}/serve_again.yml", "vars": {"what": "restored after the lab"}}
    return [
        task("Gather facts", "facts"),
        task("Remove last arm", "clear_arm", NAME, register="cleared"),
        task("Restore previous server", "restore_previous", NAME, register="restored", when="cleared.changed"),
        {**again, "when": "cleared.changed and restored.to_start"},
    ]


def _before() -> Iterator[Task]:
    yield task("Unload Ollama's models", "ollama_unload", {"mode": "{{ ollama }}"}, register="ollama_had")
    yield play_tasks.drained()


@dataclass(frozen=True)
class _Lab:
    """The turns of the arms on one host."""

    experiment: Experiment
    series: str
    parts: str
    taken: play_tasks.Taken
    #: flags in which two arms differ
    changed: Sequence[str]

    def lint(self, arm: str) -> str:
        """Return the name under which an arm's lint is registered: lint_ and the arm's index."""
        return f"lint_{play_tasks.place(self.experiment, arm)}"

    def may_start(self, arm: str) -> str:
        """Return the condition that an arm's image accepts its flags and that it fits in memory."""
        return f"not {self.lint(arm)}.failed and not {play_tasks.fits_register(self.experiment, arm)}.failed"

    def prepared(self) -> Iterator[Task]:
        """Yield the checks and downloads that run while the server still serves."""
        for arm in play_tasks.distinct(self.experiment, self.taken.names):
            yield from _fetched(arm)
        for name in self.taken.names:
            yield play_tasks.linted(name, self.lint(name))
        yield from play_tasks.fits(self.experiment, self.taken.names)

    def turn(self, turn: Turn, number: int) -> Task:
        """Return one arm's turn.

        An arm of a sweep that does not start is skipped; of a pair, one arm alone is no comparison.
        """
        arm, conditions, when = turn.arm, [self.may_start(turn.arm)], {}
        judged = self.taken.judged
        if judged is not None and number > judged:
            conditions.append(f"not config_{judged}.same")
        if number == judged:
            when = {"when": f"not config_{number}.same"}
        config = play_tasks.config_args(turn, number, self.series, self.taken, self.changed)
        why = "{{ failed_result.msg }}"
        rescue = [
            task("Collect incident diagnostics", "incident", {**NAME, "why": why}, ignore_errors=True),
            task(f"Skip arm {arm}", "bench_failed", {"arm": arm, "why": why}),
        ]
        if self.experiment.compares:
            rescue.append(task("Abort the comparison", "fail", {"msg": why}))
        return {
            "name": f"Arm {arm}: {play_tasks.title(self.experiment, arm)}",
            "vars": {"to_serve": value(f"arms[{arm!r}]")},
            "when": conditions,
            "block": [
                {"include": f"{self.parts}/arm.yml"},
                task("Read engine settings", "engine_config", config, register=f"config_{number}"),
                *({**measured(cell, self.series, ARM), **when} for cell in turn.cells),
            ],
            "rescue": rescue,
        }


def _fetched(arm: Arm) -> Iterator[Task]:
    """Yield the tasks that fetch an arm's image and model."""
    of = f"arms[{arm.name!r}]"
    needs = {"container": f"{of}.spec", "image": f"{of}.lock.image", "model": f"{of}.lock.model"}
    needs |= {"model_dir": f"{of}.model.dir", "home": "home"}
    yield task("Run preflight checks", "preflight", values(needs))
    image = {"ref": f"{of}.spec.image", "manifests": f"{of}.lock.image.manifests", "mirror": "host.registry_mirror"}
    image["engine"] = f"{of}.engine.name"
    yield task("Pull image by digest", "docker_image", values(image))
    model = {key: f"{of}.model.{key}" for key in ("id", "commit", "files", "dir", "transfer")}
    yield task("Download model and verify every file", "hf_model", values({**model, "from": "host.model_from"}))
    further = f"{of}.model.models | default([])"
    args = values({"models": further})
    yield task("Download further models and verify every file", "second_models", args, when=further)
