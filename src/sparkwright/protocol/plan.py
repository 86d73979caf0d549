"""A Plan: one play for one host, rendered and checked, as plain JSON.

Some arguments and conditions are still open expressions ("{{ facts.home }}", "{{ image.changed }}"): those over facts and
registered results. The runner evaluates them before the task runs. Nothing else is open.
"""

from __future__ import annotations

import getpass
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType
from typing import Any

from sparkwright.protocol.cluster import Cluster

SCHEMA = 1
#: the required fields of a task, a block or a plan
REQUIRED_FIELDS = ("id", "name", "module", "run_id", "host", "play")


def new_run_id(suffix: str = "") -> str:
    """Return an id for a run, sortable by time.

    suffix: its ending, for a run that keeps no folder; otherwise the ending is unique.
    """
    return f"{time.strftime('%Y%m%dT%H%M%S')}-{suffix or os.urandom(4).hex()}"


@dataclass(frozen=True, slots=True)
class Task:
    """A module with its arguments, and when and how it runs. Names and meanings are Ansible's."""

    #: unique in the plan
    id: str
    name: str
    module: str
    args: dict[str, Any] = field(default_factory=dict)
    #: the arguments that the host still has to render; all others are final, whatever braces they hold
    open: tuple[str, ...] = ()
    #: "file:line" in the user's playbook
    where: str = ""
    when: tuple[str, ...] = ()
    register: str = ""
    until: tuple[str, ...] = ()
    retries: int = 0
    #: pause between retries, seconds
    delay_s: float = 5.0
    notify: tuple[str, ...] = ()
    changed_when: tuple[str, ...] | None = None
    failed_when: tuple[str, ...] | None = None
    ignore_errors: bool = False
    become: bool = False
    no_log: bool = False
    #: None follows the run, True never changes anything, False acts even in check mode
    check_mode: bool | None = None
    #: the container whose record this task keeps, if it is not the plan's own; may be an open expression
    server: str = ""
    tags: tuple[str, ...] = ()
    #: the part of the run that it belongs to, a line on a terminal: prepare, stop, start, verify
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Tasks that succeed or fail together: `rescue` runs when one fails, `always` whatever happened."""

    id: str
    name: str
    tasks: tuple[Step, ...] = ()
    rescue: tuple[Step, ...] = ()
    always: tuple[Step, ...] = ()
    when: tuple[str, ...] = ()
    where: str = ""


Step = Task | Block


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a host needs to run one play."""

    run_id: str
    host: str
    play: str
    steps: tuple[Step, ...]
    handlers: tuple[Task, ...] = ()
    #: the laptop's values that open expressions refer to
    vars: dict[str, Any] = field(default_factory=dict)
    #: variables that are themselves expressions over facts or results
    open_vars: dict[str, Any] = field(default_factory=dict)
    #: results of earlier plays of the playbook
    registered: dict[str, Any] = field(default_factory=dict)
    #: names only; the values travel beside the plan, never in it
    secrets: tuple[str, ...] = ()
    playbook: str = ""
    check: bool = False
    diff: bool = False
    #: takes the host's lock (it changes the host)
    exclusive: bool = True
    #: it measures the server with requests, so it never runs during another run
    measures: bool = False
    #: user@laptop, for the lock and the history
    who: str = ""
    force_handlers: bool = False
    #: how long to wait for a lock that another run holds, seconds
    wait_s: float = 0
    #: the cluster whose members' runs wait for each other at barriers
    cluster: Cluster | None = None
    #: the name of the container, on a host that serves several
    server: str = ""
    #: it takes turns in memory with other servers
    by_turns: bool = False
    #: the memory that the guard over a start keeps for the host, GiB; 0: a share of its memory
    guard_gib: float = 0
    #: start even a configuration with which the host went down
    anyway: bool = False
    schema: int = SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, which shares plain values with the plan; `from_json` is its inverse."""
        data = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "cluster"}
        if self.cluster is not None:
            data["cluster"] = self.cluster.to_json()
        lists = {
            "steps": [_step_to_json(step) for step in self.steps],
            "handlers": [_step_to_json(handler) for handler in self.handlers],
        }
        return data | lists

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Plan:
        """Return the plan of plain JSON. Raises ValueError if it has another schema, or is not a plan."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"a plan of schema {data.get('schema')}, this runtime reads {SCHEMA}")
        steps = [_parse_step(step) for step in _require_list(data.get("steps"))]
        handlers = [_parse_task(task) for task in _require_list(data.get("handlers", []))]
        parts: dict[str, Any] = {"steps": steps, "handlers": handlers}
        if data.get("cluster") is not None:
            parts["cluster"] = Cluster.from_json(data["cluster"])
        plan = cls(**_parse_fields(cls, {**data, **parts}))
        if plan.cluster is not None and plan.cluster.members[plan.cluster.rank] != plan.host:
            raise ValueError("the plan is not of the host that has its rank in the cluster")
        return plan


def tasks_of(steps: tuple[Step, ...]) -> list[Task]:
    """Return every task in reading order: a block's tasks, then its rescue, then its always."""
    tasks: list[Task] = []
    for step in steps:
        tasks += [step] if isinstance(step, Task) else tasks_of((*step.tasks, *step.rescue, *step.always))
    return tasks


def _step_to_json(step: Step) -> dict[str, Any]:
    data = {field.name: getattr(step, field.name) for field in fields(step)}
    if isinstance(step, Block):
        data |= {part: [_step_to_json(inner) for inner in data[part]] for part in ("tasks", "rescue", "always")}
    return data


def _parse_step(data: Any) -> Step:
    if not isinstance(data, dict):
        raise ValueError("a step is not an object")
    if "module" in data:
        return _parse_task(data)
    parts = {
        part: [_parse_step(step) for step in _require_list(data.get(part, []))]
        for part in ("tasks", "rescue", "always")
    }
    return Block(**_parse_fields(Block, {**data, **parts}))


def _parse_task(data: Any) -> Task:
    task = Task(**_parse_fields(Task, data))
    if not set(task.open) <= task.args.keys():
        raise ValueError(f"`open` of {task.id} names an argument that is not there")
    return task


def _require_list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError("steps are not a list")
    return value


def _parse_fields(plan_type: type[Any], data: Any) -> dict[str, Any]:
    """Return the values of a dataclass from JSON, each with its field's type; a list becomes a tuple. Raises ValueError."""
    if not isinstance(data, dict):
        raise ValueError(f"a {plan_type.__name__.lower()} is not an object")
    field_types = {field.name: str(field.type) for field in fields(plan_type)}
    for name, value in data.items():
        if name not in field_types or not _TYPE_CHECKS[field_types[name]](value):
            raise ValueError(f"{plan_type.__name__.lower()} has no `{name}` like this")
    if missing := [name for name in REQUIRED_FIELDS if name in field_types and name not in data]:
        raise ValueError(f"{plan_type.__name__.lower()} has no {', '.join(missing)}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def _is_instance_of(*kinds: type[Any]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _is_amount_of(*kinds: type[Any]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value <= 10**9


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


#: checks by a field's declared type
_TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": _is_instance_of(str),
    "bool": _is_instance_of(bool),
    "bool | None": _is_instance_of(bool, NoneType),
    "int": _is_amount_of(int),
    "float": _is_amount_of(int, float),
    "dict[str, Any]": _is_instance_of(dict),
    "tuple[str, ...]": _is_text_list,
    "tuple[str, ...] | None": lambda value: value is None or _is_text_list(value),
    "Cluster | None": _is_instance_of(Cluster, NoneType),
    **dict.fromkeys(("tuple[Step, ...]", "tuple[Task, ...]"), _is_instance_of(list, tuple)),
}


def user_at_host() -> str:
    """Return user@laptop, as the host's lock and history show it."""
    return f"{getpass.getuser()}@{platform.node()}"
