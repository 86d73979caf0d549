"""The play of an experiment, which is saved as a playbook with the results so that anyone can read what was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sparkwright.bench.experiment import Arm, Cell, Experiment, Turn
from sparkwright.project import shipped_files

HEAD = (
    shipped_files.line("playbook", depth=2)  # results/NAME/
    + "# Made by `invoke bench.*`. `arms` and `loads` are what the recipes, the lock and the command line make of them.\n"
)


def text(tasks: list[Task], hosts: str, name: str, also: Mapping[str, Any] | None = None) -> str:
    """Return a playbook with these tasks.

    Args:
        tasks: tasks of the play.
        hosts: hosts of the play.
        name: name of the play.
        also: variables in addition to `to_serve`, the previous server.
    """
    production = values({"spec": "container", "model": "pinned_model", "serve": "serve", "base_url": "base_url"})
    play = {"name": f"Bench {name}", "hosts": hosts, "vars": {"to_serve": production, **(also or {})}, "tasks": tasks}
    return HEAD + yaml.safe_dump([play], sort_keys=False, width=130, allow_unicode=True)


def on_the_server(experiment: Experiment, series: str, parts: str) -> list[Task]:
    """Return the tasks that measure the running server.

    Nothing is restarted, except a server that the memory guard had to stop.

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
    """Yield the tasks that restart the server if a failed measurement made it exit."""
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
    """Return the tasks that start and measure the arms in turn, and then restore the previous server.

    Args:
        experiment: the experiment.
        series: name of the series.
        parts: path from the playbook to the shared parts.
        known: settings that were read before, by arm.
        changed: flags in which two arms differ.
    """
    found = taken(experiment, known)
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
    return [task("Gather facts", "facts"), *lab.prepared(), *_before(), block, *after()]


def nothing_left(parts: str) -> list[Task]:
    """Return the tasks for a finished experiment, which restore the previous server if an interrupted run did not."""
    again = {"include": f"{parts}/serve_again.yml", "vars": {"what": "restored after the lab"}}
    return [
        task("Gather facts", "facts"),
        task("Remove last arm", "clear_arm", NAME, register="cleared"),
        task("Restore previous server", "restore_previous", NAME, register="restored", when="cleared.changed"),
        {**again, "when": "cleared.changed and restored.to_start"},
    ]


def _before() -> Iterator[Task]:
    yield task("Unload Ollama's models", "ollama_unload", {"mode": "{{ ollama }}"}, register="ollama_had")
    yield drained()


@dataclass(frozen=True)
class _Lab:
    """The turns of the arms on one host."""

    experiment: Experiment
    series: str
    parts: str
    taken: Taken
    #: flags in which two arms differ
    changed: Sequence[str]

    def lint(self, arm: str) -> str:
        """Return the name under which an arm's lint is registered: lint_ and the arm's index."""
        return f"lint_{place(self.experiment, arm)}"

    def may_start(self, arm: str) -> str:
        """Return the condition that an arm's image accepts its flags and that the arm fits in memory."""
        return f"not {self.lint(arm)}.failed and not {fits_register(self.experiment, arm)}.failed"

    def prepared(self) -> Iterator[Task]:
        """Yield the checks and downloads that run while the server still serves."""
        for arm in distinct(self.experiment, self.taken.names):
            yield from _fetched(arm)
        for name in self.taken.names:
            yield linted(name, self.lint(name))
        yield from fits(self.experiment, self.taken.names)

    def turn(self, turn: Turn, number: int) -> Task:
        """Return an arm's turn.

        An arm of a sweep that does not start is skipped. With an arm of a pair the comparison ends, as there is nothing to
        compare.
        """
        arm, conditions, when = turn.arm, [self.may_start(turn.arm)], {}
        judged = self.taken.judged
        if judged is not None and number > judged:
            conditions.append(f"not config_{judged}.same")
        if number == judged:
            when = {"when": f"not config_{number}.same"}
        config = config_args(turn, number, self.series, self.taken, self.changed)
        why = "{{ failed_result.msg }}"
        rescue = [
            task("Collect incident diagnostics", "incident", {**NAME, "why": why}, ignore_errors=True),
            task(f"Skip arm {arm}", "bench_failed", {"arm": arm, "why": why}),
        ]
        if self.experiment.compares:
            rescue.append(task("Abort the comparison", "fail", {"msg": why}))
        return {
            "name": f"Arm {arm}: {title(self.experiment, arm)}",
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


NAME = {"name": "{{ container.name }}"}
#: address and model of an arm
ARM = {"base_url": "{{ to_serve.base_url }}", "model": "{{ to_serve.serve.served_name }}"}

Task = dict[str, Any]


def task(name: str, module: str, args: Mapping[str, Any] | None = None, **how: Any) -> Task:
    """Return a playbook task. Other keywords, such as `register` and `when`, are passed through."""
    return {"name": name, module: dict(args) if args else None, **how}


def value(expression: str) -> str:
    """Return an expression in a playbook's syntax, in double braces."""
    return f"{{{{ {expression} }}}}"


def values(expressions: Mapping[str, str]) -> dict[str, str]:
    """Return expressions by name, in a playbook's syntax."""
    return {name: value(expression) for name, expression in expressions.items()}


@dataclass(frozen=True)
class Taken:
    """The turns that are left of an experiment."""

    turns: tuple[Turn, ...]
    #: arms that have a turn
    names: tuple[str, ...]
    #: index of the turn in which the settings of two arms are compared; None for no turn
    judged: int | None = None


def taken(experiment: Experiment, known: Mapping[str, Any]) -> Taken:
    """Return the remaining turns.

    A comparison first needs the settings of both arms, so an arm without known settings is started to read them.

    Args:
        experiment: the rest of the experiment.
        known: settings that were read before, by arm.
    """
    turns = list(experiment.turns)
    names = tuple(arm.name for arm in experiment.arms if any(turn.arm == arm.name for turn in turns))
    if not experiment.compares or len(known) == 2:
        return Taken(tuple(turns), names)
    names = tuple(arm.name for arm in experiment.arms)
    other = next(name for name in names if name != turns[0].arm)
    if other not in known:
        turns.insert(0, Turn(other, ()))
    return Taken(tuple(turns), names, 0 if turns[0].cells else 1)


def fits(experiment: Experiment, names: Sequence[str]) -> Iterator[Task]:
    """Yield a task per arm that checks its memory budget while the server still serves; see `fits_register`.

    A pair is refused if either arm does not fit, while an arm of a sweep is skipped.
    """
    for name in names:
        how: dict[str, Any] = {} if experiment.compares else {"ignore_errors": True}
        about = {"to_serve": value(f"arms[{name!r}]")}
        title = f"Check that arm {name} fits in memory"
        yield task(title, "assert_memory_fits", _needs(), vars=about, register=fits_register(experiment, name), **how)


def fits_register(experiment: Experiment, arm: str) -> str:
    """Return the name under which the result of an arm's budget is registered: fits_ and the arm's index."""
    return f"fits_{place(experiment, arm)}"


def _needs() -> dict[str, str]:
    """Return the arguments of the memory budget of `to_serve`."""
    needs = {"name": "container.name", "utilization": "to_serve.serve.utilization"}
    needs["needs_bytes"] = "to_serve.serve.needs_bytes | default(0)"
    needs["engine_memory"] = "to_serve.serve.engine_memory | default({})"
    needs |= {"reserve_gib": "reserve_gib", "ollama": "ollama", "beside": "beside", "turns": "host.turns"}
    return values(needs)


def drained(**how: Any) -> Task:
    """Return the task that drains requests, after which gateways send none until `after`.

    Clients are neither served by an arm nor disturb its measurement.
    """
    args = {**NAME, "drain_s": "{{ drain_s }}", "gateways": "{{ host.gateways }}"}
    return task("Drain requests", "drain", args, **how)


def after(when: str = "host.gateways") -> Iterator[Task]:
    """Yield the tasks that follow once the servers are back.

    Args:
        when: condition for returning them to their gateways.
    """
    yield task("Return it to its gateways", "gateway_return", NAME, when=when)
    models = {"models": "{{ ollama_had.models | default([]) }}", "stopped": "{{ [] }}"}
    again = {**models, "reserve_gib": "{{ reserve_gib }}"}
    yield task("Reload Ollama's models if they fit", "ollama_reload", again, when="reload_after")


def place(experiment: Experiment, arm: str) -> int:
    """Return an arm's index."""
    return [item.name for item in experiment.arms].index(arm)


def title(experiment: Experiment, arm: str) -> str:
    """Return an arm's title."""
    return experiment.arms[place(experiment, arm)].title


def distinct(experiment: Experiment, names: Sequence[str]) -> Iterator[Arm]:
    """Yield an arm for each combination of image and model."""
    seen: set[str] = set()
    for arm in (arm for arm in experiment.arms if arm.name in names):
        file = arm.recipe.file
        what = f"{file.image} {file.model.id} {file.model.revision} {file.model.dir}"
        if what not in seen:
            seen.add(what)
            yield arm


def linted(name: str, register: str) -> Task:
    """Return the task that checks an arm's flags against its image and model."""
    of = f"arms[{name!r}]"
    args = {"image": f"{of}.spec.image", "image_ids": f"{of}.spec.image_ids", "model_dir": f"{of}.model.dir"}
    args |= {word: f"{of}.engine.{word}" for word in ("flags", "platform", "network", "env")}
    args["engine"] = f"{of}.engine.name"
    title = f"Check flags of arm {name} against engine and model"
    return task(title, "lint", values(args), register=register, ignore_errors=True)


def config_args(turn: Turn, number: int, series: str, taken: Taken, changed: Sequence[str]) -> dict[str, Any]:
    """Return the arguments for reading and storing an arm's settings, and in one turn for comparing them with the other arm's."""
    config: dict[str, Any] = {"name": "{{ to_serve.spec.name }}", "series": series}
    config |= {"key": config_key(turn.arm), "arm": turn.arm}
    if number == taken.judged:
        other = next(name for name in taken.names if name != turn.arm)
        against = value("config_0.settings" if number else f"arms_known[{other!r}]")
        config |= {"against": against, "changed": list(changed)}
    return config


def measured(cell: Cell, series: str, server: Mapping[str, str]) -> Task:
    """Return the task that measures a cell and stores the result."""
    load = {**server, "load": value(f"loads[{cell.key!r}]")}
    kept = {"series": series, "key": cell.key, "arm": cell.arm, "repetition": cell.repetition}
    return task(f"Measure {cell.arm}: {verdict(cell)}", "bench", {**load, **kept})


def verdict(cell: Cell) -> str:
    """Describe a cell's load in a few words."""
    load = cell.load
    how = f"{load.rate:g} requests/s" if load.rate else f"{load.concurrency} at a time" if load.concurrency else ""
    words = {
        "smoke": f"one stream, {load.prompt_tokens} in, {load.output_tokens} out, {load.requests} times",
        "serve": f"{load.requests} requests, {how}",
        "hol1": f"a prompt of {load.long_tokens} tokens while {load.streams} streams decode",
        "hol2": f"a prompt of {load.long_tokens} tokens, {load.shorts} short ones {load.after_s * 1000:.0f} ms behind it",
        "itl": f"gaps while {load.longs} prompts of {load.long_tokens} tokens arrive",
        "depth": f"{load.concurrency} x {load.prompt_tokens} tokens deep",
        "mixed": f"{load.longs} long and {load.shorts} short, {how}",
    }
    again = f" (turn {cell.repetition})" if cell.repetition > 1 else ""
    hot = f", temperature {load.temperature:g}" if load.temperature else ""
    return words[load.kind] + hot + again


def config_key(arm: str) -> str:
    """Return the key under which an arm's settings are stored on the host."""
    return f"config-{arm}"
