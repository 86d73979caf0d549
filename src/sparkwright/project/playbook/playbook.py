"""Reads playbooks: their models, the files that they include, and their checks."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, field_validator

from sparkwright.errors import Refused
from sparkwright.modules import registry
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import Strict, schema_field, suggest_name, validate
from sparkwright.project.inventory import rules
from sparkwright.project.rollout_policy import batch_size_error
from sparkwright.protocol import expressions
from sparkwright.trust.secret_names import find_plain_secrets, is_secret
from sparkwright.visible import one_line

#: maximum of `retries` and `delay`
MAX_RETRIES = 10**9

Condition = bool | str | list[bool | str]
#: maximum number of includes in a playbook
MAX_INCLUDES = 200
#: maximum nesting of a playbook's task lists
MAX_DEPTH = 24
TASK_LISTS = ("tasks", "handlers", "block", "rescue", "always")
SECRET_FILE_FIX = "Put it into a file on the host with mode 0600, and use the file's name here."


class Common(Strict):
    """Keywords of both tasks and blocks."""

    name: str = schema_field("the task's name, shown on the screen", "")
    when: Condition | None = schema_field("expressions that must all be true", None)
    tags: list[str] | str = schema_field("for --tags; `always` and `never` as in Ansible", default_factory=list)
    become: bool | None = schema_field("run as root, through sudo", None)
    server: str | None = schema_field(
        "on a host with several servers: the container to act on (default: the play's)", None
    )
    vars: dict[str, Any] = schema_field("variables", default_factory=dict)
    stage: str = schema_field(
        "the stage of the run that begins here, shown as a line on a terminal, e.g. prepare or start", "", max_length=24
    )


class TaskFile(Common):
    """A task: one module with its arguments, under the module's name as key, and keywords."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    register_as: str | None = schema_field("variable for the result", None, alias="register")
    until: Condition | None = schema_field("retry until this is true", None)
    retries: int = schema_field("number of retries (3 with `until`)", 0, ge=0, le=MAX_RETRIES)
    delay: float = schema_field("seconds between retries", 5, ge=0, le=MAX_RETRIES)
    notify: list[str] | str = schema_field(
        "handlers to run at the end if the task changed something", default_factory=list
    )
    changed_when: Condition | None = schema_field("condition under which the task counts as changed", None)
    failed_when: Condition | None = schema_field("condition under which the task counts as failed", None)
    ignore_errors: bool = schema_field("continue after a failure", False)
    no_log: bool = schema_field("hide message, data and diff", False)
    check_mode: bool | None = schema_field("true: always in check mode; false: act even with --check", None)


class BlockFile(Common):
    """Tasks that succeed or fail together."""

    block: list[dict[str, Any]] = schema_field("the tasks")
    rescue: list[dict[str, Any]] = schema_field("tasks to run if one of them failed", default_factory=list)
    always: list[dict[str, Any]] = schema_field("tasks to run afterwards in any case", default_factory=list)


class IncludeFile(Common):
    """An include, which is replaced by a block with the tasks of another file."""

    include: str = schema_field("a file with a list of tasks, relative to this one: parts/swap.yml")


class PlayFile(Strict):
    """A play: tasks for some hosts."""

    name: str = schema_field("the play's name", "")
    hosts: str = schema_field("a host pattern; --host narrows it")
    serial: list[int | str] | int | str = schema_field('batch size: 1, "25%", [1, "50%"]', default_factory=list)
    max_fail_percentage: float | None = schema_field(
        "stop if more than this share of a batch failed", None, ge=0, le=100
    )
    vars: dict[str, Any] = schema_field("variables", default_factory=dict)
    tags: list[str] | str = schema_field("tags of all its tasks", default_factory=list)
    become: bool = schema_field("run its tasks as root, through sudo", False)
    read_only: bool = schema_field("changes nothing, so it needs no lock and may run during a deploy", False)
    measures: bool = schema_field(
        "measures the server: while another run is in progress on the host, it waits (`--wait`) or exits with 4; its tests "
        "load the server in check mode too",
        False,
    )
    force_handlers: bool = schema_field("run notified handlers even after a failure", False)
    tasks: list[dict[str, Any]] = schema_field("tasks and blocks", default_factory=list)
    handlers: list[dict[str, Any]] = schema_field("tasks that run when notified", default_factory=list)

    @field_validator("serial", mode="before")
    @classmethod
    def _check_serial(cls, value: Any) -> Any:
        for size in value if isinstance(value, list) else [value]:
            if problem := batch_size_error(size):
                raise ValueError(problem)
        return value


def splice_includes(source: Document, project: Path) -> Document:
    """Return the document with each include replaced by a block with the included file's tasks.

    Included tasks keep the lines of their own file. A project's file overrides the shipped file with the same name.

    Raises Refused for a file that is missing, includes itself, or is not a list of tasks.
    """
    splicer = _IncludeSplicer(source, project, (source.path.resolve(),), 0, [])
    data = splicer.splice(source.data, ())
    return replace(source, data=data, included_documents=splicer.included_documents)


class _IncludeSplicer:
    """Replaces the includes of one file.

    Args:
        opened_paths: this file and the files that include it, to detect recursive includes.
        depth: number of enclosing lists.
        included: all files included so far; this class appends to it.
    """

    def __init__(
        self, source: Document, project: Path, opened_paths: tuple[Path, ...], depth: int, included: list[Path]
    ) -> None:
        self.source = source
        self.project = project
        self.opened_paths = opened_paths
        self.depth = depth
        self.included = included
        self.included_documents: dict[Place, Document] = {}

    def splice(self, value: Any, place: Place) -> Any:
        """Return a list of plays or tasks with its includes replaced, at every depth."""
        if not isinstance(value, list):
            return value
        if self.depth > MAX_DEPTH:
            message = f"blocks and includes are nested more than {MAX_DEPTH} levels deep."
            raise Refused(message, where=self.source.where(*place))
        self.depth += 1
        items = [self._splice_item(item, (*place, n)) for n, item in enumerate(value)]
        self.depth -= 1
        return items

    def _splice_item(self, item: Any, place: Place) -> Any:
        if not isinstance(item, dict):
            return item
        if "include" in item:
            return self._load_include(item, place)
        return {key: self.splice(value, (*place, key)) if key in TASK_LISTS else value for key, value in item.items()}

    def _load_include(self, item: dict[str, Any], place: Place) -> dict[str, Any]:
        include = validate(IncludeFile, self.source, item, section_place=place)
        path = shipped_files.resolve_relative(self.project, self.source.path, include.include)
        where = self.source.where(*place, "include")
        if not document.exists(path):
            message = f"no file '{one_line(include.include, max_chars=80)}' in the same directory."
            raise Refused(message, where=where, fix=suggest_name(include.include, self._list_files()))
        if path.resolve() in self.opened_paths:
            raise Refused(f"{include.include} includes itself.", where=where)
        self.included.append(path)
        if len(self.included) > MAX_INCLUDES:
            raise Refused(f"more than {MAX_INCLUDES} includes.", where=where)
        included = document.load(path)
        if not isinstance(included.data, list):
            raise Refused("an included file must be a list of tasks.", where=included.where())
        splicer = _IncludeSplicer(
            included, self.project, (*self.opened_paths, path.resolve()), self.depth, self.included
        )
        tasks = splicer.splice(included.data, ())
        self.included_documents[(*place, "block")] = replace(
            included, data=tasks, included_documents=splicer.included_documents
        )
        keywords = {key: value for key, value in item.items() if key != "include"}
        return {"name": include.include, **keywords, "block": tasks}

    def _list_files(self) -> list[str]:
        """Return the files that this file can include, relative to it."""
        folder = self.source.path.parent
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.yml")}
        for top in (self.project, shipped_files.shipped_folder()):
            if folder.is_relative_to(top / "playbooks"):
                subfolder = folder.relative_to(top).as_posix()
                shipped_names = shipped_files.list_names(self.project, f"{subfolder}/**/*.yml")
                names |= {name.removeprefix(f"{subfolder}/") for name in shipped_names}
        return sorted(names)


@dataclass(frozen=True)
class Options:
    """Options of a run, as given on the command line."""

    check: bool = False
    diff: bool = False
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    start_at_task: str = ""
    #: user@laptop
    who: str = ""
    #: maximum time to wait for another run's lock
    wait_s: float = 0
    #: variables that override all others, e.g. rollback for `--no-rollback`
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Play:
    """A play of a playbook."""

    file: PlayFile
    document: Document
    #: place of the play in the document
    place: Place

    @property
    def name(self) -> str:
        return self.file.name or self.file.hosts

    @property
    def hosts(self) -> str:
        return self.file.hosts

    @property
    def serial(self) -> Sequence[int | str]:
        return self.file.serial if isinstance(self.file.serial, list) else [self.file.serial]

    @property
    def max_fail_percentage(self) -> float | None:
        return self.file.max_fail_percentage

    def uses(self, names: Iterable[str]) -> bool:
        """Return True if an expression of the play uses one of the names."""
        return not self._used_names.isdisjoint(names)

    @functools.cached_property
    def _used_names(self) -> set[str]:
        return _find_names(self.file.model_dump())

    def has_task(self, module: str) -> bool:
        """Return True if a task of the play, at any depth, runs the module."""
        return any(module in step for step in self._steps())

    @property
    def acts_in_check(self) -> bool:
        """True if a task acts even in check mode (`check_mode: false`)."""
        return any(step.get("check_mode") is False for step in self._steps())

    def _steps(self) -> Iterator[Mapping[str, Any]]:
        return walk_steps([*self.file.tasks, *self.file.handlers])


@dataclass(frozen=True)
class Playbook:
    """A playbook."""

    path: Path
    plays: tuple[Play, ...]


def load(path: Path, project: Path) -> Playbook:
    """Read a playbook with its includes. Raises Refused if it is invalid."""
    source = splice_includes(document.load(path), project)
    if not isinstance(source.data, list) or not source.data:
        raise Refused("a playbook must be a list of plays (- name: ..., hosts: ..., tasks: ...).", where=source.where())
    plays = [
        Play(validate(PlayFile, source, data, section_place=(n,)), source, (n,)) for n, data in enumerate(source.data)
    ]
    for n, play in enumerate(plays):
        check_steps(source, play.file.tasks, (n, "tasks"))
        check_steps(source, play.file.handlers, (n, "handlers"))
    refuse_secrets(source)
    return Playbook(path, tuple(plays))


def _find_names(value: Any, key: str = "") -> set[str]:
    """Return the names in template expressions, and in the conditions of `when`, `until` and similar keys."""
    if isinstance(value, dict):
        return set().union(*(_find_names(child, str(name)) for name, child in value.items()))
    if isinstance(value, list | tuple):
        return set().union(*(_find_names(child, key) for child in value))
    if not isinstance(value, str):
        return set()
    try:
        is_condition = key in ("when", "until", "changed_when", "failed_when")
        return set(expressions.names_in_condition(value) if is_condition else expressions.names_in(value))
    except expressions.ExpressionError:
        return set()


def walk_steps(steps: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield tasks and blocks at every depth. A key of a task that is not a list, such as `rescue: text`, is not followed."""
    for step in steps:
        yield step
        for key in ("block", "rescue", "always"):
            if isinstance(step.get(key), list):
                yield from walk_steps(step[key])


def refuse_secrets(source: Document) -> None:
    """Raise Refused for the first secret in plain text in a playbook."""
    for section, place in _find_secrets(source.data, ()):
        raise rules.secret_error(place, source, section, fix="" if place[0] == "vars" else SECRET_FILE_FIX)


def check_steps(source: Document, steps: list[Any], place: Place) -> None:
    """Raise Refused for the first invalid task or block of a list, at any depth. place: place of the list."""
    for n, step in enumerate(steps):
        step_place = (*place, n)
        validate(
            BlockFile if isinstance(step, dict) and "block" in step else TaskFile,
            source,
            step,
            section_place=step_place,
        )
        for key in TASK_LISTS:
            if isinstance(step.get(key), list):
                check_steps(source, step[key], (*step_place, key))


def _find_secrets(steps: Any, place: Place) -> Iterator[tuple[Place, Place]]:
    """Yield two places for each secret: that of its play, block or task, and that of the secret below it."""
    for n, step in enumerate(steps if isinstance(steps, list) else ()):
        if not isinstance(step, dict):
            continue
        step_place = (*place, n)
        for secret_place in find_plain_secrets(step.get("vars"), ("vars",)):
            yield step_place, secret_place
        for module in step.keys() & registry.NAMES:
            for secret_place in find_plain_secrets(step[module], (module,)):
                if _is_secret_argument(secret_place, step):
                    yield step_place, secret_place
        for key in TASK_LISTS:
            yield from _find_secrets(step.get(key), (*step_place, key))


def _is_secret_argument(place: Place, step: Any) -> bool:
    """Return True if a module's argument is a secret by its format, or is an environment variable with a secret's name.

    The argument's own name is ignored: `key`, for example, may be any key.
    """
    return "env" in place or is_secret("", reduce(getitem, place, step))
