"""The play of an experiment: a playbook like any other, written beside its results, so that anybody can read what is done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from sparkwright.bench.experiment import Cell, Experiment, Turn

HEAD = (
    "# Made by `invoke bench.*`. `arms` and `loads` are what the recipes, the lock and the command line make of them.\n"
)


@dataclass(frozen=True)
class _Judge:
    """In which turn two arms' settings are held against each other, and the flags in which they differ."""

    turn: int
    changed: tuple[str, ...]


def text(tasks: list[dict[str, Any]], host: str, name: str) -> str:
    """The playbook as YAML."""
    production = {
        "spec": "{{ container }}",
        "model": "{{ pinned_model }}",
        "serve": "{{ serve }}",
        "base_url": "{{ base_url }}",
    }
    play = {"name": f"Bench {name}", "hosts": host, "vars": {"to_serve": production}, "tasks": tasks}
    return HEAD + yaml.safe_dump([play], sort_keys=False, width=130, allow_unicode=True)


def on_the_server(experiment: Experiment, series: str) -> list[dict[str, Any]]:
    """Measure what runs; nothing is restarted."""
    cells = [cell for turn in experiment.turns for cell in turn.cells]
    return [
        {"name": "Gather facts", "facts": None},
        {
            "name": "Compare running container with recipe",
            "container": {"spec": "{{ container }}"},
            "register": "server",
            "check_mode": True,
            "changed_when": False,
        },
        {
            "name": "Check that it generates",
            "verify_health": {"base_url": "{{ base_url }}", "model": "{{ served_name }}"},
        },
        {
            "name": "Read engine settings",
            "engine_config": {"name": "{{ container.name }}"},
            "register": "config_server",
            "ignore_errors": True,
        },
        *(_bench(cell, series, "{{ base_url }}", "{{ served_name }}") for cell in cells),
    ]


def with_arms(
    experiment: Experiment,
    series: str,
    parts: str,
    *,
    known: Mapping[str, Mapping[str, Any]],
    changed: Sequence[str],
) -> list[dict[str, Any]]:
    """Start each arm in its turn, measure it, and restore what served before.

    parts: the way from the playbook to the shared parts. known: settings of arms read before. changed: the flags in which two
    arms differ.
    """
    turns = list(experiment.turns)
    names = [arm.name for arm in experiment.arms if any(turn.arm == arm.name for turn in turns)]
    compare = experiment.compares and len(known) < 2
    if compare:
        names = [arm.name for arm in experiment.arms]
        other = next(name for name in names if name != turns[0].arm)
        if other not in known:
            turns.insert(0, Turn(other, ()))
    judge = _Judge(int(bool(compare and not turns[0].cells)), tuple(changed)) if compare else None
    first = {"to_serve": f"{{{{ arms[{names[0]!r}] }}}}"} if names else {}
    swap = [
        {
            "name": "Stop server, keep it for later",
            "stop_and_keep": {"name": "{{ container.name }}", "stop_timeout_s": "{{ serve.stop_timeout_s }}"},
        }
    ]
    for number, turn in enumerate(turns):
        swap.append(_turn(turn, number, experiment, series, parts, names, judge))
    every = " and " if experiment.compares else " or "
    started = every.join(f"not {_lint(experiment, name)}.failed" for name in names)
    block = {
        "name": "Measure the arms",
        "when": started,
        "block": swap,
        "always": [
            {"name": "Wait for the Docker Engine", "docker_ready": None},
            {"name": "Remove last arm", "clear_arm": {"name": "{{ container.name }}"}},
            {
                "name": "Restore previous server",
                "restore_previous": {"name": "{{ container.name }}"},
                "register": "restored",
            },
            {
                "include": f"{parts}/serve_again.yml",
                "vars": {"what": "restored after the lab"},
                "when": "restored.to_start",
            },
        ],
    }
    return [
        {"name": "Gather facts", "facts": None},
        *_prepared(experiment, names),
        _room(first),
        *_before(),
        block,
        _after(),
    ]


def _prepared(experiment: Experiment, names: Sequence[str]) -> list[dict[str, Any]]:
    """All that can be known and fetched while the server still serves."""
    found: list[dict[str, Any]] = []
    seen: set[str] = set()
    for arm in (one for one in experiment.arms if one.name in names):
        file = arm.recipe.file
        of = f"arms[{arm.name!r}]"
        what = f"{file.image} {file.model.id} {file.model.revision} {file.model.dir}"
        if what not in seen:
            seen.add(what)
            found += [
                {
                    "name": "Run preflight checks",
                    "preflight": {
                        "container": f"{{{{ {of}.spec }}}}",
                        "image": f"{{{{ {of}.lock.image }}}}",
                        "model": f"{{{{ {of}.lock.model }}}}",
                        "model_dir": f"{{{{ {of}.model.dir }}}}",
                        "home": "{{ home }}",
                    },
                },
                {
                    "name": "Pull image by digest",
                    "docker_image": {
                        "ref": f"{{{{ {of}.spec.image }}}}",
                        "manifests": f"{{{{ {of}.lock.image.manifests }}}}",
                        "mirror": "{{ host.registry_mirror }}",
                    },
                },
                {
                    "name": "Download model and verify every file",
                    "hf_model": {
                        **{key: f"{{{{ {of}.model.{key} }}}}" for key in ("id", "commit", "files", "dir", "transfer")},
                        "from": "{{ host.model_from }}",
                    },
                },
            ]
    for name in names:
        of = f"arms[{name!r}]"
        words = ("flags", "platform", "model_by_flag", "env")
        found.append(
            {
                "name": f"Check flags of arm {name} against engine and model",
                "lint": {
                    "image": f"{{{{ {of}.spec.image }}}}",
                    "image_ids": f"{{{{ {of}.spec.image_ids }}}}",
                    "model_dir": f"{{{{ {of}.model.dir }}}}",
                    **{word: f"{{{{ {of}.engine.{word} }}}}" for word in words},
                },
                "register": _lint(experiment, name),
                "ignore_errors": True,
            }
        )
    return found


def _room(first: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": "Check that it fits in memory",
        "assert_memory_fits": {
            "name": "{{ container.name }}",
            "utilization": "{{ to_serve.serve.utilization }}",
            "reserve_gib": "{{ reserve_gib }}",
            "ollama": "{{ ollama }}",
        },
        "vars": dict(first),
    }


def _before() -> list[dict[str, Any]]:
    return [
        {"name": "Unload Ollama's models", "ollama_unload": {"mode": "{{ ollama }}"}, "register": "ollama_had"},
        {"name": "Drain requests", "drain": {"name": "{{ container.name }}", "drain_s": "{{ drain_s }}"}},
    ]


def _after() -> dict[str, Any]:
    return {
        "name": "Reload Ollama's models if they fit",
        "ollama_reload": {
            "models": "{{ ollama_had.models | default([]) }}",
            "stopped": "{{ [] }}",
            "reserve_gib": "{{ reserve_gib }}",
        },
        "when": "reload_after",
    }


def _turn(
    turn: Turn,
    number: int,
    experiment: Experiment,
    series: str,
    parts: str,
    names: Sequence[str],
    judge: _Judge | None,
) -> dict[str, Any]:
    """One arm's turn. In a sweep an arm that does not start is left out; of a pair, one alone is no comparison."""
    conditions = [f"not {_lint(experiment, turn.arm)}.failed"]
    config: dict[str, Any] = {
        "name": "{{ to_serve.spec.name }}",
        "series": series,
        "key": config_key(turn.arm),
        "arm": turn.arm,
    }
    bench_when: dict[str, Any] = {}
    if judge is not None and number > judge.turn:
        conditions.append(f"not config_{judge.turn}.same")
    if judge is not None and number == judge.turn:
        other = next(name for name in names if name != turn.arm)
        against = "{{ config_0.settings }}" if number else f"{{{{ arms_known[{other!r}] }}}}"
        config |= {"against": against, "changed": list(judge.changed)}
        bench_when = {"when": f"not config_{number}.same"}
    steps: list[dict[str, Any]] = [
        {"include": f"{parts}/arm.yml"},
        {"name": "Read engine settings", "engine_config": config, "register": f"config_{number}"},
        *({**_bench(cell, series), **bench_when} for cell in turn.cells),
    ]
    title = next(arm.title for arm in experiment.arms if arm.name == turn.arm)
    found: dict[str, Any] = {
        "name": f"Arm {turn.arm}: {title}",
        "vars": {"to_serve": f"{{{{ arms[{turn.arm!r}] }}}}"},
        "when": conditions,
        "block": steps,
    }
    found["rescue"] = [
        {
            "name": "Collect incident diagnostics",
            "incident": {"name": "{{ container.name }}", "why": "{{ failed_result.msg }}"},
            "ignore_errors": True,
        },
        {
            "name": f"Skip arm {turn.arm}",
            "bench_failed": {"arm": turn.arm, "why": "{{ failed_result.msg }}"},
        },
    ]
    if experiment.compares:
        found["rescue"].append({"name": "Abort the comparison", "fail": {"msg": "{{ failed_result.msg }}"}})
    return found


def _bench(
    cell: Cell,
    series: str,
    base_url: str = "{{ to_serve.base_url }}",
    model: str = "{{ to_serve.serve.served_name }}",
) -> dict[str, Any]:
    return {
        "name": f"Measure {cell.arm}: {verdict(cell)}",
        "bench": {
            "base_url": base_url,
            "model": model,
            "load": f"{{{{ loads[{cell.key!r}] }}}}",
            "series": series,
            "key": cell.key,
            "arm": cell.arm,
            "repetition": cell.repetition,
        },
    }


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


def _lint(experiment: Experiment, arm: str) -> str:
    """Under which name an arm's lint is registered: lint_ and its place among the arms."""
    return f"lint_{[one.name for one in experiment.arms].index(arm)}"


def config_key(arm: str) -> str:
    """Under which an arm's settings are kept on the host."""
    return f"config-{arm}"
