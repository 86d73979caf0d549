"""Tasks of an experiment's play, shared by single hosts and clusters, and the turns that are left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkwright.bench.arms import Arm
from sparkwright.bench.experiment import Cell, Experiment, Turn

NAME = {"name": "{{ container.name }}"}
#: address and model of an arm
ARM = {"base_url": "{{ to_serve.base_url }}", "model": "{{ to_serve.serve.served_name }}"}

Task = dict[str, Any]


def task(name: str, module: str, args: Mapping[str, Any] | None = None, **how: Any) -> Task:
    """Return a task of a playbook. Further keywords, such as `register` and `when`, are passed through."""
    return {"name": name, module: dict(args) if args else None, **how}


def value(expression: str) -> str:
    """Return an expression as a playbook has it, in double braces."""
    return f"{{{{ {expression} }}}}"


def values(expressions: Mapping[str, str]) -> dict[str, str]:
    """Return expressions by name, as a playbook has them."""
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
    """Return the turns that are left.

    A comparison needs the settings of both arms first, so an arm without known settings is started for them.

    Args:
        experiment: what is left of the experiment.
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
    """Yield a task for each arm that checks its memory budget while the server still serves; see `fits_register`.

    A pair is refused if one of the two does not fit. An arm of a sweep is skipped.
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
    """Return the task that drains requests: gateways send none until `after`.

    No client is served by an arm, nor disturbs its measurement.
    """
    args = {**NAME, "drain_s": "{{ drain_s }}", "gateways": "{{ host.gateways }}"}
    return task("Drain requests", "drain", args, **how)


def after(when: str = "host.gateways") -> Iterator[Task]:
    """Yield the tasks that follow once the servers are back.

    Args:
        when: condition under which they return to their gateways.
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
    """Yield one arm for each combination of image and model."""
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
    """Return the arguments that read and store an arm's settings, and compare them with the other arm's in the turn for that."""
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
    """Return a cell's load in a few words."""
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
