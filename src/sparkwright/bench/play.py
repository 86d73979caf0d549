"""The play of an experiment, which is saved as a playbook with the results so that anyone can read what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sparkwright.bench.experiment import Arm, Cell, Experiment, Turn
from sparkwright.project import shipped_files

HEADER = (
    shipped_files.schema_line("playbook", depth=2)  # results/NAME/
    + "# Made by `invoke bench.*`. `arms` and `loads` are what the recipes, the lock and the command line make of them.\n"
)


def render_play(tasks: list[Task], hosts: str, name: str, variables: Mapping[str, Any] | None = None) -> str:
    """Return a playbook with these tasks.

    Args:
        tasks: tasks of the play.
        hosts: hosts of the play.
        name: name of the play.
        variables: variables in addition to `to_serve`, the previous server.
    """
    production = as_templates({"spec": "container", "model": "pinned_model", "serve": "serve", "base_url": "base_url"})
    play = {
        "name": f"Bench {name}",
        "hosts": hosts,
        "vars": {"to_serve": production, **(variables or {})},
        "tasks": tasks,
    }
    return HEADER + yaml.safe_dump([play], sort_keys=False, width=130, allow_unicode=True)


def server_tasks(experiment: Experiment, series: str, parts: str) -> list[Task]:
    """Return the tasks that measure the running server.

    Nothing is restarted, except a server that the memory guard had to stop.

    Args:
        experiment: the experiment.
        series: name of the series.
        parts: see `arm_tasks`.
    """
    server = {"base_url": "{{ base_url }}", "model": "{{ served_name }}"}
    check_only: Task = {"register": "server", "check_mode": True, "changed_when": False}
    return [
        task("Gather facts", "facts"),
        task("Compare running container with recipe", "container", {"spec": "{{ container }}"}, **check_only),
        task("Check that it generates", "verify_health", server),
        task("Read engine settings", "engine_config", NAME_ARGUMENTS, register="config_server", ignore_errors=True),
        {
            "name": "Measure the server",
            "block": [measure_task(cell, series, server) for turn in experiment.turns for cell in turn.cells],
            "always": list(_restart_tasks(parts)),
        },
    ]


def _restart_tasks(parts: str) -> Iterator[Task]:
    """Yield the tasks that restart the server if a failed measurement made it exit."""
    check_only: Task = {"register": "left", "check_mode": True, "changed_when": False, "ignore_errors": True}
    failed = "failed_result.failed"
    yield task("Wait for the Docker Engine", "docker_ready", when=failed)
    yield task("Check whether it still runs", "container", {"spec": "{{ container }}"}, when=failed, **check_only)
    stop = {**NAME_ARGUMENTS, "stop_timeout_s": "{{ serve.stop_timeout_s }}"}
    why = "{{ failed_result.msg }}"
    yield {
        "name": "Start the server again",
        "when": [failed, "left.exists | default(false) and not left.running"],
        "block": [
            task("Collect incident diagnostics", "incident", {**NAME_ARGUMENTS, "why": why}, ignore_errors=True),
            task("Stop it for a clean start", "stopped", stop),
            task("Find how it ran", "restore_previous", {**NAME_ARGUMENTS, "why": why}, register="restored"),
            {
                "include": f"{parts}/serve_again.yml",
                "vars": {"what": "restored after the lab"},
                "when": "restored.to_start",
            },
        ],
    }


def arm_tasks(
    experiment: Experiment,
    series: str,
    parts: str,
    *,
    known_settings: Mapping[str, Mapping[str, Any]],
    changed_flags: Sequence[str],
) -> list[Task]:
    """Return the tasks that start and measure the arms in turn, and then restore the previous server.

    Args:
        experiment: the experiment.
        series: name of the series.
        parts: path from the playbook to the shared parts.
        known_settings: settings that were read before, by arm.
        changed_flags: flags in which two arms differ.
    """
    remaining = remaining_turns(experiment, known_settings)
    names, lab = remaining.names, _Lab(experiment, series, parts, remaining, changed_flags)
    stop = {**NAME_ARGUMENTS, "stop_timeout_s": "{{ serve.stop_timeout_s }}"}
    block = {
        "name": "Measure the arms",
        "when": (" and " if experiment.compares else " or ").join(f"({lab.start_condition(name)})" for name in names),
        "block": [
            task("Stop server, keep it for later", "stop_and_keep", stop),
            *(lab.turn(turn, number) for number, turn in enumerate(remaining.turns)),
        ],
        "always": [
            task("Wait for the Docker Engine", "docker_ready"),
            task("Remove last arm", "clear_arm", NAME_ARGUMENTS),
            task("Restore previous server", "restore_previous", NAME_ARGUMENTS, register="restored"),
            {
                "include": f"{parts}/serve_again.yml",
                "vars": {"what": "restored after the lab"},
                "when": "restored.to_start",
            },
        ],
    }
    return [task("Gather facts", "facts"), *lab.preparation_tasks(), *_free_memory_tasks(), block, *return_tasks()]


def finished_tasks(parts: str) -> list[Task]:
    """Return the tasks for a finished experiment, which restore the previous server if an interrupted run did not."""
    serve_again = {"include": f"{parts}/serve_again.yml", "vars": {"what": "restored after the lab"}}
    return [
        task("Gather facts", "facts"),
        task("Remove last arm", "clear_arm", NAME_ARGUMENTS, register="cleared"),
        task(
            "Restore previous server", "restore_previous", NAME_ARGUMENTS, register="restored", when="cleared.changed"
        ),
        {**serve_again, "when": "cleared.changed and restored.to_start"},
    ]


def _free_memory_tasks() -> Iterator[Task]:
    yield task("Unload Ollama's models", "ollama_unload", {"mode": "{{ ollama }}"}, register="ollama_had")
    yield drain_task()


@dataclass(frozen=True)
class _Lab:
    """The turns of the arms on one host."""

    experiment: Experiment
    series: str
    parts: str
    remaining: RemainingTurns
    #: flags in which two arms differ
    changed: Sequence[str]

    def lint_register(self, arm: str) -> str:
        """Return the name under which an arm's lint is registered: lint_ and the arm's index."""
        return f"lint_{arm_index(self.experiment, arm)}"

    def start_condition(self, arm: str) -> str:
        """Return the condition that an arm's image accepts its flags and that the arm fits in memory."""
        return f"not {self.lint_register(arm)}.failed and not {fits_register(self.experiment, arm)}.failed"

    def preparation_tasks(self) -> Iterator[Task]:
        """Yield the checks and downloads that run while the server still serves."""
        for arm in distinct_arms(self.experiment, self.remaining.names):
            yield from _fetch_tasks(arm)
        for name in self.remaining.names:
            yield lint_task(name, self.lint_register(name))
        yield from fit_tasks(self.experiment, self.remaining.names)

    def turn(self, turn: Turn, number: int) -> Task:
        """Return an arm's turn.

        An arm of a sweep that does not start is skipped. With an arm of a pair the comparison ends, as there is nothing to
        compare.
        """
        arm, conditions, settings_differ = turn.arm, [self.start_condition(turn.arm)], {}
        compared_turn = self.remaining.compared_turn
        if compared_turn is not None and number > compared_turn:
            conditions.append(f"not config_{compared_turn}.same")
        if number == compared_turn:
            settings_differ = {"when": f"not config_{number}.same"}
        config = config_arguments(turn, number, self.series, self.remaining, self.changed)
        why = "{{ failed_result.msg }}"
        rescue = [
            task("Collect incident diagnostics", "incident", {**NAME_ARGUMENTS, "why": why}, ignore_errors=True),
            task(f"Skip arm {arm}", "bench_failed", {"arm": arm, "why": why}),
        ]
        if self.experiment.compares:
            rescue.append(task("Abort the comparison", "fail", {"msg": why}))
        return {
            "name": f"Arm {arm}: {arm_title(self.experiment, arm)}",
            "vars": {"to_serve": as_template(f"arms[{arm!r}]")},
            "when": conditions,
            "block": [
                {"include": f"{self.parts}/arm.yml"},
                task("Read engine settings", "engine_config", config, register=f"config_{number}"),
                *({**measure_task(cell, self.series, ARM_ARGUMENTS), **settings_differ} for cell in turn.cells),
            ],
            "rescue": rescue,
        }


def _fetch_tasks(arm: Arm) -> Iterator[Task]:
    """Yield the tasks that fetch an arm's image and model."""
    arm_path = f"arms[{arm.name!r}]"
    needs = {"container": f"{arm_path}.spec", "image": f"{arm_path}.lock.image", "model": f"{arm_path}.lock.model"}
    needs |= {"model_dir": f"{arm_path}.model.dir", "home": "home"}
    yield task("Run preflight checks", "preflight", as_templates(needs))
    image = {
        "ref": f"{arm_path}.spec.image",
        "manifests": f"{arm_path}.lock.image.manifests",
        "mirror": "host.registry_mirror",
    }
    image["engine"] = f"{arm_path}.engine.name"
    yield task("Pull image by digest", "docker_image", as_templates(image))
    model = {key: f"{arm_path}.model.{key}" for key in ("id", "commit", "files", "dir", "transfer")}
    yield task("Download model and verify every file", "hf_model", as_templates({**model, "from": "host.model_from"}))
    further_models = f"{arm_path}.model.models | default([])"
    args = as_templates({"models": further_models})
    yield task("Download further models and verify every file", "second_models", args, when=further_models)


NAME_ARGUMENTS = {"name": "{{ container.name }}"}
#: address and model of an arm
ARM_ARGUMENTS = {"base_url": "{{ to_serve.base_url }}", "model": "{{ to_serve.serve.served_name }}"}

Task = dict[str, Any]


def task(name: str, module: str, args: Mapping[str, Any] | None = None, **keywords: Any) -> Task:
    """Return a playbook task. Other keywords, such as `register` and `when`, are passed through."""
    return {"name": name, module: dict(args) if args else None, **keywords}


def as_template(expression: str) -> str:
    """Return an expression in a playbook's syntax, in double braces."""
    return f"{{{{ {expression} }}}}"


def as_templates(expressions: Mapping[str, str]) -> dict[str, str]:
    """Return expressions by name, in a playbook's syntax."""
    return {name: as_template(expression) for name, expression in expressions.items()}


@dataclass(frozen=True)
class RemainingTurns:
    """The turns that are left of an experiment."""

    turns: tuple[Turn, ...]
    #: arms that have a turn
    names: tuple[str, ...]
    #: index of the turn in which the settings of two arms are compared; None for no turn
    compared_turn: int | None = None


def remaining_turns(experiment: Experiment, known_settings: Mapping[str, Any]) -> RemainingTurns:
    """Return the remaining turns.

    A comparison first needs the settings of both arms, so an arm without known settings is started to read them.

    Args:
        experiment: the rest of the experiment.
        known_settings: settings that were read before, by arm.
    """
    turns = list(experiment.turns)
    names = tuple(arm.name for arm in experiment.arms if any(turn.arm == arm.name for turn in turns))
    if not experiment.compares or len(known_settings) == 2:
        return RemainingTurns(tuple(turns), names)
    names = tuple(arm.name for arm in experiment.arms)
    other_arm = next(name for name in names if name != turns[0].arm)
    if other_arm not in known_settings:
        turns.insert(0, Turn(other_arm, ()))
    return RemainingTurns(tuple(turns), names, 0 if turns[0].cells else 1)


def fit_tasks(experiment: Experiment, names: Sequence[str]) -> Iterator[Task]:
    """Yield a task per arm that checks its memory budget while the server still serves; see `fits_register`.

    A pair is refused if either arm does not fit, while an arm of a sweep is skipped.
    """
    for name in names:
        error_handling: dict[str, Any] = {} if experiment.compares else {"ignore_errors": True}
        variables = {"to_serve": as_template(f"arms[{name!r}]")}
        title = f"Check that arm {name} fits in memory"
        yield task(
            title,
            "assert_memory_fits",
            _budget_arguments(),
            vars=variables,
            register=fits_register(experiment, name),
            **error_handling,
        )


def fits_register(experiment: Experiment, arm: str) -> str:
    """Return the name under which the result of an arm's budget is registered: fits_ and the arm's index."""
    return f"fits_{arm_index(experiment, arm)}"


def _budget_arguments() -> dict[str, str]:
    """Return the arguments of the memory budget of `to_serve`."""
    needs = {"name": "container.name", "utilization": "to_serve.serve.utilization"}
    needs["needs_bytes"] = "to_serve.serve.needs_bytes | default(0)"
    needs["engine_memory"] = "to_serve.serve.engine_memory | default({})"
    needs |= {"reserve_gib": "reserve_gib", "ollama": "ollama", "beside": "beside", "turns": "host.turns"}
    return as_templates(needs)


def drain_task(**keywords: Any) -> Task:
    """Return the task that drains requests, after which gateways send none until `return_tasks`.

    Clients are neither served by an arm nor disturb its measurement.
    """
    args = {**NAME_ARGUMENTS, "drain_s": "{{ drain_s }}", "gateways": "{{ host.gateways }}"}
    return task("Drain requests", "drain", args, **keywords)


def return_tasks(when: str = "host.gateways") -> Iterator[Task]:
    """Yield the tasks that follow once the servers are back.

    Args:
        when: condition for returning them to their gateways.
    """
    yield task("Return it to its gateways", "gateway_return", NAME_ARGUMENTS, when=when)
    models = {"models": "{{ ollama_had.models | default([]) }}", "stopped": "{{ [] }}"}
    arguments = {**models, "reserve_gib": "{{ reserve_gib }}"}
    yield task("Reload Ollama's models if they fit", "ollama_reload", arguments, when="reload_after")


def arm_index(experiment: Experiment, arm: str) -> int:
    """Return an arm's index."""
    return [item.name for item in experiment.arms].index(arm)


def arm_title(experiment: Experiment, arm: str) -> str:
    """Return an arm's title."""
    return experiment.arms[arm_index(experiment, arm)].title


def distinct_arms(experiment: Experiment, names: Sequence[str]) -> Iterator[Arm]:
    """Yield an arm for each combination of image and model."""
    seen: set[str] = set()
    for arm in (arm for arm in experiment.arms if arm.name in names):
        file = arm.recipe.file
        identity = f"{file.image} {file.model.id} {file.model.revision} {file.model.dir}"
        if identity not in seen:
            seen.add(identity)
            yield arm


def lint_task(name: str, register: str) -> Task:
    """Return the task that checks an arm's flags against its image and model."""
    arm_path = f"arms[{name!r}]"
    args = {
        "image": f"{arm_path}.spec.image",
        "image_ids": f"{arm_path}.spec.image_ids",
        "model_dir": f"{arm_path}.model.dir",
    }
    args |= {word: f"{arm_path}.engine.{word}" for word in ("flags", "platform", "network", "env")}
    args["engine"] = f"{arm_path}.engine.name"
    title = f"Check flags of arm {name} against engine and model"
    return task(title, "lint", as_templates(args), register=register, ignore_errors=True)


def config_arguments(
    turn: Turn, number: int, series: str, remaining: RemainingTurns, changed_flags: Sequence[str]
) -> dict[str, Any]:
    """Return the arguments for reading and storing an arm's settings, and in one turn for comparing them with the other arm's."""
    config: dict[str, Any] = {"name": "{{ to_serve.spec.name }}", "series": series}
    config |= {"key": config_key(turn.arm), "arm": turn.arm}
    if number == remaining.compared_turn:
        other_arm = next(name for name in remaining.names if name != turn.arm)
        other_settings = as_template("config_0.settings" if number else f"arms_known[{other_arm!r}]")
        config |= {"against": other_settings, "changed": list(changed_flags)}
    return config


def measure_task(cell: Cell, series: str, server: Mapping[str, str]) -> Task:
    """Return the task that measures a cell and stores the result."""
    load = {**server, "load": as_template(f"loads[{cell.key!r}]")}
    storage = {"series": series, "key": cell.key, "arm": cell.arm, "repetition": cell.repetition}
    return task(f"Measure {cell.arm}: {describe_load(cell)}", "bench", {**load, **storage})


def describe_load(cell: Cell) -> str:
    """Describe a cell's load in a few words."""
    load = cell.load
    arrivals = f"{load.rate:g} requests/s" if load.rate else f"{load.concurrency} at a time" if load.concurrency else ""
    descriptions = {
        "smoke": f"one stream, {load.prompt_tokens} in, {load.output_tokens} out, {load.requests} times",
        "serve": f"{load.requests} requests, {arrivals}",
        "hol1": f"a prompt of {load.long_tokens} tokens while {load.streams} streams decode",
        "hol2": f"a prompt of {load.long_tokens} tokens, {load.shorts} short ones {load.after_s * 1000:.0f} ms behind it",
        "itl": f"gaps while {load.longs} prompts of {load.long_tokens} tokens arrive",
        "depth": f"{load.concurrency} x {load.prompt_tokens} tokens deep",
        "mixed": f"{load.longs} long and {load.shorts} short, {arrivals}",
    }
    repetition = f" (turn {cell.repetition})" if cell.repetition > 1 else ""
    temperature = f", temperature {load.temperature:g}" if load.temperature else ""
    return descriptions[load.kind] + temperature + repetition


def config_key(arm: str) -> str:
    """Return the key under which an arm's settings are stored on the host."""
    return f"config-{arm}"
