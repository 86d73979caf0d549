"""Experiments: their arms (recipes with changed flags), the turns in which the arms serve, and the cells of each turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sparkwright.bench import axis
from sparkwright.bench.axis import Axis
from sparkwright.engines.advice import EffectiveSettings, ServerRequest
from sparkwright.engines.findings import Finding
from sparkwright.engines.http import GENERATE
from sparkwright.errors import Refused
from sparkwright.measure.workload import WORKLOAD_VERSION, Load
from sparkwright.project.documents import document
from sparkwright.project.recipe import Recipe
from sparkwright.project.recipe.engine_settings import ServerSettings, resolve_settings
from sparkwright.project.recipe.section_rules import is_on_host_network
from sparkwright.protocol.container import LAB_LABEL
from sparkwright.trust.secret_names import is_secret

LOOPBACK = "127.0.0.1"
#: usual name of chunked prefill on the command line
CHUNKED_PREFILL_FLAG = "chunked-prefill"
#: name of the engines' rule about unknown flags
UNKNOWN_FLAG_RULE = "unknown-flag"


@dataclass(frozen=True)
class Cell:
    """A measurement of one load on one arm."""

    key: str
    arm: str
    load: Load
    repetition: int


@dataclass(frozen=True)
class Turn:
    """One start of an arm to measure cells. If there are none, only the arm's settings are read."""

    arm: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Arm:
    """A configuration that an experiment measures."""

    #: the arm's name in cells
    name: str
    title: str
    #: the recipe, including the changes
    recipe: Recipe
    #: flags that differ from the written recipe; None removes a flag
    changes: Mapping[str, Any] = field(default_factory=dict)
    #: the value of each swept flag
    swept_values: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.recipe.file.task != GENERATE:
            message = f"{self.recipe.name} is for `task: {self.recipe.file.task}`: bench measures generated text."
            raise Refused(message, where=self.recipe.source.where("task"), fix="Choose a recipe that generates.")

    def server_settings(self, pinned: Mapping[str, Any]) -> ServerSettings:
        """Return the settings that the arm's engine would serve with, and the errors and warnings about them."""
        return resolve_settings(self.recipe, pinned)

    def effective_settings(self, pinned: Mapping[str, Any]) -> EffectiveSettings:
        """Return the predicted settings."""
        settings = self.server_settings(pinned)
        file = self.recipe.file
        request = ServerRequest(settings.flags, file.image, file.platform, file.container.env)
        return settings.engine.advice.effective_settings(request, locked_config(pinned), settings.version)


@dataclass(frozen=True)
class Experiment:
    """The arms of an experiment and their turns."""

    command: str
    name: str
    arms: tuple[Arm, ...]
    turns: tuple[Turn, ...]
    #: sentences about the limits of the loads
    notes: tuple[str, ...] = ()

    @property
    def keys(self) -> list[str]:
        return [cell.key for turn in self.turns for cell in turn.cells]

    @property
    def compares(self) -> bool:
        """True if two arms are compared with each other."""
        return self.command != "sweep" and len(self.arms) == 2

    def remove_finished(self, finished_cells: Mapping[str, Any]) -> Experiment:
        """Return the experiment without its finished cells, and without turns that have no cells left."""
        remaining = [
            replace(turn, cells=tuple(cell for cell in turn.cells if cell.key not in finished_cells))
            for turn in self.turns
        ]
        return replace(self, turns=tuple(turn for turn in remaining if turn.cells))


def order_arms(names: Sequence[str], repeat: int, *, pair: bool) -> list[str]:
    """Return the order of the arms.

    A pair is measured as A B B A, so that drift of the host affects both equally. More arms go forwards and then backwards.
    """
    if pair:
        return [name for _ in range(repeat) for name in (*names, *reversed(names))]
    return [name for turn in range(repeat) for name in (names if turn % 2 == 0 else list(reversed(names)))]


def build_turns(order: Sequence[str], loads: Sequence[Load], identities: Mapping[str, Any]) -> tuple[Turn, ...]:
    """Return the turns with their cells.

    Args:
        order: names of the arms, in the order of their turns.
        loads: loads to measure in each turn.
        identities: everything that identifies an arm, by arm; a changed command results in different cells.
    """
    repetitions: dict[str, int] = {}
    turns = []
    for arm in order:
        repetitions[arm] = repetitions.get(arm, 0) + 1
        cells = [
            Cell(_cell_key(arm, load, identities[arm], repetitions[arm]), arm, load, repetitions[arm]) for load in loads
        ]
        turns.append(Turn(arm, tuple(cells)))
    return tuple(turns)


def _cell_key(arm: str, load: Load, identity: Any, repetition: int) -> str:
    identifying_json = json.dumps([WORKLOAD_VERSION, load.to_json(), identity], sort_keys=True, default=str)
    return f"{arm}.{load.kind}.{hashlib.sha256(identifying_json.encode()).hexdigest()[:10]}.{repetition}"


def find_refusal(arm: Arm, pinned: Mapping[str, Any]) -> Finding | None:
    """Return the reason why the engine would not start, or None if none is known."""
    return next(iter(arm.server_settings(pinned).errors), None)


def running_arm(base: Recipe) -> Arm:
    return Arm("server", base.name, base)


def recipe_arms(recipe: Recipe, other: Recipe) -> list[Arm]:
    """Return the arms for two recipes. Raises Refused if their images differ, because two things would change at once."""
    if recipe.image != other.image:
        raise Refused(
            f"{recipe.name} runs {recipe.image} and {other.name} {other.image}: two things would change at once.",
            fix="Give both recipes the same image.",
        )
    return [_build_arm("a", recipe.name, recipe, {}), _build_arm("b", other.name, other, {})]


def flag_arms(base: Recipe, text: str, pinned: Mapping[str, Any]) -> list[Arm]:
    """Return two arms that differ in one flag.

    Args:
        base: the recipe.
        text: `chunked-prefill` compares it on and off; NAME or NAME=VALUE compares the recipe without and with this flag.
        pinned: entries of spark.lock for the recipe's image and model.
    """
    written_name, equals, value = text.partition("=")
    if written_name == CHUNKED_PREFILL_FLAG and not equals:
        return _chunked_prefill_arms(base, pinned)
    if equals and is_secret(written_name, value):
        raise Refused(
            f"--flag {written_name}: its value looks like a secret, which results and `docker inspect` would show."
        )
    base, flags = as_deployed(base, pinned), base.engine.flags
    name = base.engine.advice.CHUNKED_PREFILL_FLAG if written_name == CHUNKED_PREFILL_FLAG else written_name
    flag_value = document.parse(value, Path("--flag")).data if equals else True
    if "." in name or flag_value == axis.UNSET:
        arms_with_flag = grid_arms(base, [Axis(name, (flag_value,))], pinned, names=("b",))
        return [_build_arm("a", base.name, base, {}), *arms_with_flag]
    change = flags.normalize({name: flag_value})
    arguments = flags.argv(change)
    arms = [
        _build_arm("a", f"{base.name}", base, {}),
        _build_arm("b", f"{base.name} {' '.join(arguments)}", base, change),
    ]
    _check_axis(Axis(name, ()), arms[1:], pinned)
    return arms


def sweep_arms(base: Recipe, values: Sequence[int], pinned: Mapping[str, Any]) -> list[Arm]:
    """Return an arm for each token budget of a step. Raises Refused if the engine has no flag for it."""
    name = base.engine.flags.BUDGET_FLAG
    if not name:
        raise Refused(f"{base.engine.title} has no flag for the tokens of one step.")
    return grid_arms(base, [Axis(name, tuple(values))], pinned)


def grid_arms(
    base: Recipe, axes: Sequence[Axis], pinned: Mapping[str, Any], *, names: Sequence[str] | None = None
) -> list[Arm]:
    """Return an arm for each combination of the axes' values.

    Args:
        base: the recipe whose flags are changed.
        axes: one or two flags with their values.
        pinned: entries of spark.lock for the recipe's image and model.
        names: names of the arms; derived from the values if empty.

    Raises:
        Refused: a flag is unknown to the recipe's engine, is set by another key of a recipe, is changed twice, or there are more
            than `axis.MAX_ARMS` arms.
    """
    base, combinations = as_deployed(base, pinned), list(axis.combine_values(axes))
    if len(combinations) > axis.MAX_ARMS:
        raise Refused(
            f"{len(combinations)} arms: an experiment can have at most {axis.MAX_ARMS}, because each takes minutes to load.",
            fix="Give fewer values.",
        )
    if len({axis.canonical_name(swept_axis.name, base.engine.flags) for swept_axis in axes}) < len(axes):
        raise Refused(f"{' and '.join(swept_axis.name for swept_axis in axes)} are the same flag.")
    names = names or axis.arm_names(combinations)
    arms = [_grid_arm(name, base, axes, values) for name, values in zip(names, combinations, strict=True)]
    for swept_axis in axes:
        _check_axis(swept_axis, arms, pinned)
    return arms


def value_arms(base: Recipe, swept_axis: Axis, pinned: Mapping[str, Any]) -> list[Arm]:
    """Return two arms that differ in the value of one flag. Raises Refused as `grid_arms` does."""
    return grid_arms(base, [swept_axis], pinned, names=("a", "b"))


def _grid_arm(name: str, base: Recipe, axes: Sequence[Axis], values: Mapping[str, Any]) -> Arm:
    """Return the arm of one combination of values."""
    changes: dict[str, Any] = {}
    for swept_axis in axes:
        changes |= swept_axis.flag_changes(values[swept_axis.name], {**base.file.flags, **changes}, base.engine.flags)
    title = ", ".join(f"{flag} {axis.format_value(value)}" for flag, value in values.items())
    return _build_arm(name, title, base, changes, values)


def _check_axis(swept_axis: Axis, arms: Sequence[Arm], pinned: Mapping[str, Any]) -> None:
    """Raise Refused for a flag that another key of the recipe sets, or that the engine does not have."""
    flag_name = arms[0].recipe.engine.flags.canonical(swept_axis.flag)
    key = arms[0].recipe.engine.flags.RESERVED_FLAGS.get(flag_name)
    if key:
        raise Refused(f"--flag {swept_axis.name}: recipes set it under `{key}`.", fix="Compare two recipes: -a and -b.")
    for arm in arms:
        for finding in arm.server_settings(pinned).findings:
            if (
                finding.rule == UNKNOWN_FLAG_RULE
                and finding.severity == "error"
                and finding.flag in (flag_name, swept_axis.flag)
            ):
                fix = next((f"{way_out.text[:1].upper()}{way_out.text[1:]}." for way_out in finding.ways_out), "")
                raise Refused(f"--flag {swept_axis.name}: {finding.sentence}", fix=fix)


def as_deployed(base: Recipe, pinned: Mapping[str, Any]) -> Recipe:
    """Return the recipe with the flags that its expectation implies, so that a changed flag does not alter them."""
    file_flags = base.file_flags(pinned.get("model") or {})
    implied_flags = {
        name: value for name, value in resolve_settings(base, pinned).flags.items() if name not in file_flags
    }
    return replace(base, file=base.file.with_flags(implied_flags))


def locked_config(pinned: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of the model's config.json that spark.lock contains."""
    config: Mapping[str, Any] = (pinned.get("model") or {}).get("config") or {}
    return config


def _chunked_prefill_arms(base: Recipe, pinned: Mapping[str, Any]) -> list[Arm]:
    """Return the arms with chunked prefill on and off, otherwise equal."""
    changes = base.engine.advice.chunked_prefill_variants(base.file.flags, locked_config(pinned))
    if changes is None:
        raise Refused(f"{base.engine.title} has no switch for chunked prefill.")
    on, off = changes
    return [_build_arm("a", "chunked prefill on", base, on), _build_arm("b", "chunked prefill off", base, off)]


def changed_flags(arm: Arm, other: Arm) -> list[str]:
    first, second = arm.recipe.file.flags, other.recipe.file.flags
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def _build_arm(
    name: str, title: str, base: Recipe, changes: Mapping[str, Any], swept_values: Mapping[str, Any] | None = None
) -> Arm:
    """Return an arm: the recipe with these changes and without an expected rate.

    Without changes it serves as in a deploy. With changes, chunked prefill may be on or off.
    """
    flags = {name: value for name, value in base.file.flags.items() if name not in changes}
    flags |= {name: value for name, value in changes.items() if value is not None}
    container = base.file.container
    expectations = {"tok_per_s": None, **({"chunked_prefill": "any"} if changes else {})}
    file = base.file.with_flags(
        flags,
        container=container.model_copy(
            update={"labels": {**container.labels, LAB_LABEL: name}, "compile_caches": False}
        ),
        expect=base.file.expect.model_copy(update=expectations),
    )
    return Arm(name, title, replace(base, file=file), dict(changes), dict(swept_values or {}))


def with_container_name(arm: Arm, name: str) -> Arm:
    """Return the arm with the container name of the host's own server, so that an interrupted run never leaves two containers.

    It listens only on the loopback interface, so that the server's clients are refused and not measured.
    """
    file = arm.recipe.file
    ports = [":".join([LOOPBACK, *port.split(":")[-2:]]) for port in file.container.ports]
    new_container = file.container.model_copy(update={"name": name, "ports": ports})
    flags = {**file.flags, "host": LOOPBACK} if is_on_host_network(file) else file.flags
    return replace(arm, recipe=replace(arm.recipe, file=file.with_flags(flags, container=new_container)))
