"""The play of an experiment: a playbook like any other, written beside its results, so that anybody can read what is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sparkwright.bench.arms import Arm
from sparkwright.bench.experiment import Cell, Experiment, Turn

HEAD = (
    "# Made by `invoke bench.*`. `arms` and `loads` are what the recipes, the lock and the command line make of them.\n"
)
NAME = {"name": "{{ container.name }}"}
#: where an arm answers
ARM = {"base_url": "{{ to_serve.base_url }}", "model": "{{ to_serve.serve.served_name }}"}

Task = dict[str, Any]


def text(tasks: list[Task], host: str, name: str) -> str:
    production = _values({"spec": "container", "model": "pinned_model", "serve": "serve", "base_url": "base_url"})
    play = {"name": f"Bench {name}", "hosts": host, "vars": {"to_serve": production}, "tasks": tasks}
    return HEAD + yaml.safe_dump([play], sort_keys=False, width=130, allow_unicode=True)


def _task(name: str, module: str, args: Mapping[str, Any] | None = None, **how: Any) -> Task:
    """A task as a playbook has it. how: its register, when ..."""
    return {"name": name, module: dict(args) if args else None, **how}


def _value(expression: str) -> str:
    """An expression as a playbook has it."""
    return f"{{{{ {expression} }}}}"


def _values(expressions: Mapping[str, str]) -> dict[str, str]:
    return {name: _value(expression) for name, expression in expressions.items()}


def on_the_server(experiment: Experiment, series: str) -> list[Task]:
    """Measure what runs; nothing is restarted."""
    server = {"base_url": "{{ base_url }}", "model": "{{ served_name }}"}
    compared: Task = {"register": "server", "check_mode": True, "changed_when": False}
    return [
        _task("Gather facts", "facts"),
        _task("Compare running container with recipe", "container", {"spec": "{{ container }}"}, **compared),
        _task("Check that it generates", "verify_health", server),
        _task("Read engine settings", "engine_config", NAME, register="config_server", ignore_errors=True),
        *(_bench(cell, series, server) for turn in experiment.turns for cell in turn.cells),
    ]


def with_arms(
    experiment: Experiment, series: str, parts: str, *, known: Mapping[str, Mapping[str, Any]], changed: Sequence[str]
) -> list[Task]:
    """Start each arm in its turn, measure it, and restore what served before.

    parts: the way from the playbook to the shared parts. known: settings of arms read before. changed: the flags in which two
    arms differ.
    """
    turns = list(experiment.turns)
    names = [arm.name for arm in experiment.arms if any(turn.arm == arm.name for turn in turns)]
    judged = None
    if experiment.compares and len(known) < 2:
        names = [arm.name for arm in experiment.arms]
        other = next(name for name in names if name != turns[0].arm)
        if other not in known:
            turns.insert(0, Turn(other, ()))
        judged = 0 if turns[0].cells else 1
    lab = _Lab(experiment, series, parts, names, judged, changed)
    stop = {**NAME, "stop_timeout_s": "{{ serve.stop_timeout_s }}"}
    block = {
        "name": "Measure the arms",
        "when": (" and " if experiment.compares else " or ").join(f"not {lab.lint(name)}.failed" for name in names),
        "block": [
            _task("Stop server, keep it for later", "stop_and_keep", stop),
            *(lab.turn(turn, number) for number, turn in enumerate(turns)),
        ],
        "always": [
            _task("Wait for the Docker Engine", "docker_ready"),
            _task("Remove last arm", "clear_arm", NAME),
            _task("Restore previous server", "restore_previous", NAME, register="restored"),
            {
                "include": f"{parts}/serve_again.yml",
                "vars": {"what": "restored after the lab"},
                "when": "restored.to_start",
            },
        ],
    }
    first = {"to_serve": _value(f"arms[{names[0]!r}]")} if names else {}
    return [_task("Gather facts", "facts"), *lab.prepared(), *_before(first), block, _after()]


def _before(first: Mapping[str, str]) -> Iterator[Task]:
    fits = {"name": "container.name", "utilization": "to_serve.serve.utilization"}
    fits["needs_bytes"] = "to_serve.serve.needs_bytes | default(0)"
    fits |= {"reserve_gib": "reserve_gib", "ollama": "ollama"}
    yield _task("Check that it fits in memory", "assert_memory_fits", _values(fits), vars=dict(first))
    yield _task("Unload Ollama's models", "ollama_unload", {"mode": "{{ ollama }}"}, register="ollama_had")
    yield _task("Drain requests", "drain", {**NAME, "drain_s": "{{ drain_s }}"})


def _after() -> Task:
    models = {"models": "{{ ollama_had.models | default([]) }}", "stopped": "{{ [] }}"}
    again = {**models, "reserve_gib": "{{ reserve_gib }}"}
    return _task("Reload Ollama's models if they fit", "ollama_reload", again, when="reload_after")


@dataclass(frozen=True)
class _Lab:
    """Arms that take turns. names: of those that do. judged: in which turn two arms' settings are held against each other,
    and changed: the flags in which they differ."""

    experiment: Experiment
    series: str
    parts: str
    names: Sequence[str]
    judged: int | None
    changed: Sequence[str]

    def lint(self, arm: str) -> str:
        """Under which name an arm's lint is registered: lint_ and its place among the arms."""
        return f"lint_{[one.name for one in self.experiment.arms].index(arm)}"

    def prepared(self) -> Iterator[Task]:
        """All that can be known and fetched while the server still serves."""
        seen: set[str] = set()
        for arm in (one for one in self.experiment.arms if one.name in self.names):
            file = arm.recipe.file
            what = f"{file.image} {file.model.id} {file.model.revision} {file.model.dir}"
            if what not in seen:
                seen.add(what)
                yield from _fetched(arm)
        for name in self.names:
            of = f"arms[{name!r}]"
            args = {"image": f"{of}.spec.image", "image_ids": f"{of}.spec.image_ids", "model_dir": f"{of}.model.dir"}
            args |= {word: f"{of}.engine.{word}" for word in ("flags", "platform", "model_by_flag", "env")}
            args["engine"] = f"{of}.engine.name"
            title = f"Check flags of arm {name} against engine and model"
            yield _task(title, "lint", _values(args), register=self.lint(name), ignore_errors=True)

    def turn(self, turn: Turn, number: int) -> Task:
        """One arm's turn. In a sweep an arm that does not start is left out; of a pair, one alone is no comparison."""
        arm, conditions, when = turn.arm, [f"not {self.lint(turn.arm)}.failed"], {}
        config: dict[str, Any] = {"name": "{{ to_serve.spec.name }}", "series": self.series}
        config |= {"key": config_key(arm), "arm": arm}
        if self.judged is not None and number > self.judged:
            conditions.append(f"not config_{self.judged}.same")
        if number == self.judged:
            other = next(name for name in self.names if name != arm)
            against = _value("config_0.settings" if number else f"arms_known[{other!r}]")
            config |= {"against": against, "changed": list(self.changed)}
            when = {"when": f"not config_{number}.same"}
        why = "{{ failed_result.msg }}"
        rescue = [
            _task("Collect incident diagnostics", "incident", {**NAME, "why": why}, ignore_errors=True),
            _task(f"Skip arm {arm}", "bench_failed", {"arm": arm, "why": why}),
        ]
        if self.experiment.compares:
            rescue.append(_task("Abort the comparison", "fail", {"msg": why}))
        return {
            "name": f"Arm {arm}: {next(one.title for one in self.experiment.arms if one.name == arm)}",
            "vars": {"to_serve": _value(f"arms[{arm!r}]")},
            "when": conditions,
            "block": [
                {"include": f"{self.parts}/arm.yml"},
                _task("Read engine settings", "engine_config", config, register=f"config_{number}"),
                *({**_bench(cell, self.series, ARM), **when} for cell in turn.cells),
            ],
            "rescue": rescue,
        }


def _fetched(arm: Arm) -> Iterator[Task]:
    """An arm's image and model."""
    of = f"arms[{arm.name!r}]"
    needs = {"container": f"{of}.spec", "image": f"{of}.lock.image", "model": f"{of}.lock.model"}
    needs |= {"model_dir": f"{of}.model.dir", "home": "home"}
    yield _task("Run preflight checks", "preflight", _values(needs))
    image = {"ref": f"{of}.spec.image", "manifests": f"{of}.lock.image.manifests", "mirror": "host.registry_mirror"}
    image["engine"] = f"{of}.engine.name"
    yield _task("Pull image by digest", "docker_image", _values(image))
    model = {key: f"{of}.model.{key}" for key in ("id", "commit", "files", "dir", "transfer")}
    yield _task("Download model and verify every file", "hf_model", _values({**model, "from": "host.model_from"}))


def _bench(cell: Cell, series: str, server: Mapping[str, str]) -> Task:
    load = {**server, "load": _value(f"loads[{cell.key!r}]")}
    place = {"series": series, "key": cell.key, "arm": cell.arm, "repetition": cell.repetition}
    return _task(f"Measure {cell.arm}: {verdict(cell)}", "bench", {**load, **place})


def verdict(cell: Cell) -> str:
    """A cell's load in a few words."""
    load = cell.load
    how = f"{load.rate:g} requests/s" if load.rate else f"{load.concurrency} at a time" if load.concurrency else ""
    words = {
        "smoke": f"one stream, {load.prompt_tokens} in, {load.output_tokens} out, {load.requests} times",
        "serve": f"{load.requests} requests, {how}",
        "hol1": f"a prompt of {load.long_tokens} tokens while {load.streams} streams decode",
        "hol2": f"a prompt of {load.long_tokens} tokens, {load.shorts} short ones {load.after_s * 1000:.0f} ms behind it",
        "itl": f"gaps while {load.longs} prompts of {load.long_tokens} tokens arrive",
        "mixed": f"{load.longs} long and {load.shorts} short, {how}",
    }
    again = f" (turn {cell.repetition})" if cell.repetition > 1 else ""
    return words[load.kind] + again


def config_key(arm: str) -> str:
    """Under which an arm's settings are kept on the host."""
    return f"config-{arm}"
