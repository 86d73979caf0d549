"""A plan: one play for one host, rendered and checked, as plain JSON.

Only expressions over facts and registered results ("{{ facts.home }}", "{{ image.changed }}") are unresolved. The runner
evaluates them just before their task runs.
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
    """Return an id for a run; ids sort by time. suffix: last part, for a run without a folder; random if empty."""
    return f"{time.strftime('%Y%m%dT%H%M%S')}-{suffix or os.urandom(4).hex()}"


@dataclass(frozen=True, slots=True)
class Task:
    """A call of a module. Fields have the names and meanings of Ansible's task keywords."""

    #: unique in the plan
    id: str
    name: str
    module: str
    args: dict[str, Any] = field(default_factory=dict)
    #: arguments that the host renders; all others are final, even if they contain braces
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
    #: True to always run in check mode, False to act even with --check, None to follow the run
    check_mode: bool | None = None
    #: container whose records the task writes; if empty, the plan's server; may be an unresolved expression
    server: str = ""
    tags: tuple[str, ...] = ()
    #: stage of the run to which the task belongs, one line on a terminal: prepare, stop, start, verify
    stage: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """Tasks that run as a unit: `rescue` runs if one of them fails, and `always` runs in any case."""

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
    #: the laptop's values that unresolved expressions use
    vars: dict[str, Any] = field(default_factory=dict)
    #: variables that are themselves expressions over facts or results
    open_vars: dict[str, Any] = field(default_factory=dict)
    #: results of earlier plays of the playbook
    registered: dict[str, Any] = field(default_factory=dict)
    #: names only; the values are sent separately
    secrets: tuple[str, ...] = ()
    playbook: str = ""
    check: bool = False
    diff: bool = False
    #: True if the run changes the host and therefore takes its lock, except in check mode (see `holds_lock`)
    exclusive: bool = True
    #: True if the run measures the server with requests, so it must not run during another run
    measures: bool = False
    #: user@laptop, for the lock and the history
    who: str = ""
    force_handlers: bool = False
    #: time to wait for a lock that another run holds, seconds
    wait_s: float = 0
    #: None if the host is not deployed as a member of a cluster
    cluster: Cluster | None = None
    #: container name of the server; set only on a host with several servers
    server: str = ""
    #: True if the server takes turns with others that do not fit in memory at the same time
    by_turns: bool = False
    #: memory that the guard keeps free for the host during a start; 0 for the default share
    guard_gib: float = 0
    #: True to start even a configuration that crashed the host before
    anyway: bool = False
    schema: int = SCHEMA

    @property
    def holds_lock(self) -> bool:
        """True if the run holds the host's lock."""
        return self.exclusive and not self.check

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data, which shares mutable values with the plan."""
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
        """Rebuild a plan from the output of `to_json`. Raises ValueError if the data is not a plan of this SCHEMA."""
        if data.get("schema") != SCHEMA:
            raise ValueError(f"it has schema {data.get('schema')}, but this runtime reads schema {SCHEMA}")
        steps = [_parse_step(step) for step in _require_list(data.get("steps"))]
        handlers = [_parse_task(task) for task in _require_list(data.get("handlers", []))]
        parts: dict[str, Any] = {"steps": steps, "handlers": handlers}
        if data.get("cluster") is not None:
            parts["cluster"] = Cluster.from_json(data["cluster"])
        plan = cls(**_parse_fields(cls, {**data, **parts}))
        if plan.cluster is not None and plan.cluster.members[plan.cluster.rank] != plan.host:
            raise ValueError("the plan's host does not have the plan's rank in the cluster")
        return plan


def tasks_of(steps: tuple[Step, ...]) -> list[Task]:
    """Return all tasks, including nested ones, in reading order: a block's `tasks`, `rescue`, then `always`."""
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
        raise ValueError(f"`open` of {task.id} names an argument that the task does not have")
    return task


def _require_list(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError("steps are not a list")
    return value


def _parse_fields(plan_type: type[Any], data: Any) -> dict[str, Any]:
    """Return the values of a dataclass from JSON, with lists as tuples. Raises ValueError for a missing or invalid value."""
    if not isinstance(data, dict):
        raise ValueError(f"a {plan_type.__name__.lower()} is not an object")
    field_types = {field.name: str(field.type) for field in fields(plan_type)}
    for name, value in data.items():
        if name not in field_types or not _TYPE_CHECKS[field_types[name]](value):
            raise ValueError(f"{plan_type.__name__.lower()} has an unknown or invalid `{name}`")
    if missing := [name for name in REQUIRED_FIELDS if name in field_types and name not in data]:
        raise ValueError(f"{plan_type.__name__.lower()} has no {', '.join(missing)}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}


def _build_type_check(*kinds: type[Any]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


def _build_amount_check(*kinds: type[Any]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool) and 0 <= value <= 10**9


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


#: checks by a field's declared type
_TYPE_CHECKS: dict[str, Callable[[Any], bool]] = {
    "str": _build_type_check(str),
    "bool": _build_type_check(bool),
    "bool | None": _build_type_check(bool, NoneType),
    "int": _build_amount_check(int),
    "float": _build_amount_check(int, float),
    "dict[str, Any]": _build_type_check(dict),
    "tuple[str, ...]": _is_text_list,
    "tuple[str, ...] | None": lambda value: value is None or _is_text_list(value),
    "Cluster | None": _build_type_check(Cluster, NoneType),
    **dict.fromkeys(("tuple[Step, ...]", "tuple[Task, ...]"), _build_type_check(list, tuple)),
}


def user_at_host() -> str:
    """Return user@laptop, as shown in the host's lock and history."""
    return f"{getpass.getuser()}@{platform.node()}"
