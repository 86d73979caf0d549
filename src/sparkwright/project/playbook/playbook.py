"""A playbook as its file has it: plays, with the tasks of the parts that it includes, and the line of everything."""

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
from sparkwright.project.rollout_policy import check_batch_size
from sparkwright.protocol import expressions
from sparkwright.trust.secret_names import find_plain_secrets, is_secret
from sparkwright.visible import one_line

#: limit for tries, and for the seconds between them
MAX_RETRIES = 10**9

Condition = bool | str | list[bool | str]


class Common(Strict):
    """The keywords of both tasks and blocks."""

    name: str = schema_field("the task's name, shown on the screen", "")
    when: Condition | None = schema_field("expressions that must all be true", None)
    tags: list[str] | str = schema_field("for --tags; `always` and `never` as in Ansible", default_factory=list)
    become: bool | None = schema_field("run as root, through sudo", None)
    server: str | None = schema_field(
        "of a host with several servers: the container that it is about, if not the play's own", None
    )
    vars: dict[str, Any] = schema_field("variables", default_factory=dict)
    stage: str = schema_field(
        "the stage of the run that begins here, a line on a terminal: prepare, stop, start", "", max_length=24
    )


class TaskFile(Common):
    """One module with its arguments. The module's name is the key that is none of these."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    register_as: str | None = schema_field("variable that holds the result", None, alias="register")
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
    always: list[dict[str, Any]] = schema_field("tasks to run in any case", default_factory=list)


class IncludeFile(Common):
    """Tasks of another file, as one block in its place."""

    include: str = schema_field("a file with a list of tasks, relative to this one: parts/swap.yml")


class PlayFile(Strict):
    """Tasks for some hosts."""

    name: str = schema_field("what this play does", "")
    hosts: str = schema_field("a host pattern; --host narrows it")
    serial: list[int | str] | int | str = schema_field('batch size: 1, "25%", [1, "50%"]', default_factory=list)
    max_fail_percentage: float | None = schema_field(
        "stop if more than this share of a batch failed", None, ge=0, le=100
    )
    vars: dict[str, Any] = schema_field("variables", default_factory=dict)
    tags: list[str] | str = schema_field("tags of all its tasks", default_factory=list)
    become: bool = schema_field("run its tasks as root, through sudo", False)
    read_only: bool = schema_field("it changes nothing: it takes no lock and may run during a deploy", False)
    measures: bool = schema_field(
        "it measures the server: while another run is in progress on the host it waits (`--wait`) or exits with 4",
        False,
    )
    force_handlers: bool = schema_field("run notified handlers even after a failure", False)
    tasks: list[dict[str, Any]] = schema_field("tasks and blocks", default_factory=list)
    handlers: list[dict[str, Any]] = schema_field("tasks that run when notified", default_factory=list)

    @field_validator("serial", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        for item in value if isinstance(value, list) else [value]:
            why = check_batch_size(item)
            if why:
                raise ValueError(why)
        return value


#: limits for the includes of one playbook, repeated ones counted, and for the nesting of task lists
MAX_INCLUDES = 200
MAX_DEPTH = 24
TASK_LISTS = ("tasks", "handlers", "block", "rescue", "always")


def splice_includes(source: Document, project: Path) -> Document:
    """Return the document with each include replaced by a block of the file's tasks.

    Lines of an included task are those of its own file. A project's file wins over the shipped one of its name.

    Raises Refused for a missing file, or one that includes itself.
    """
    splicer = _IncludeSplicer(source, project, (source.path.resolve(),), 0, [])
    data = splicer.splice(source.data, ())
    return replace(source, data=data, grafts=splicer.grafts)


class _IncludeSplicer:
    """Puts included files into the lists of a playbook.

    Args:
        opened: the files that led to this one, to find a circle.
        depth: number of enclosing lists.
        included: every file included so far.
    """

    def __init__(
        self, read: Document, project: Path, opened: tuple[Path, ...], depth: int, included: list[Path]
    ) -> None:
        self.read = read
        self.project = project
        self.opened = opened
        self.depth = depth
        self.included = included
        self.grafts: dict[Place, Document] = {}

    def splice(self, value: Any, place: Place) -> Any:
        """Return a list of plays or of tasks with its includes replaced, at every depth."""
        if not isinstance(value, list):
            return value
        if self.depth > MAX_DEPTH:
            message = f"blocks and includes are nested more than {MAX_DEPTH} levels deep."
            raise Refused(message, where=self.read.where(*place))
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
        include = validate(IncludeFile, self.read, item, at=place)
        path = shipped_files.resolve_relative(self.project, self.read.path, include.include)
        at = self.read.where(*place, "include")
        if not document.is_file(path):
            known = self._known_files()
            message = f"no file '{one_line(include.include, max_chars=80)}' in the same directory."
            raise Refused(message, where=at, fix=suggest_name(include.include, known))
        if path.resolve() in self.opened:
            raise Refused(f"{include.include} includes itself.", where=at)
        self.included.append(path)
        if len(self.included) > MAX_INCLUDES:
            raise Refused(f"more than {MAX_INCLUDES} includes.", where=at)
        part = document.load(path)
        if not isinstance(part.data, list):
            raise Refused("an included file must be a list of tasks.", where=part.where())
        inner = _IncludeSplicer(part, self.project, (*self.opened, path.resolve()), self.depth, self.included)
        tasks = inner.splice(part.data, ())
        self.grafts[(*place, "block")] = replace(part, data=tasks, grafts=inner.grafts)
        return {"name": include.include, **{k: v for k, v in item.items() if k != "include"}, "block": tasks}

    def _known_files(self) -> list[str]:
        """Return the files that an include here could name, as it would name them."""
        folder = self.read.path.parent
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.yml")}
        for top in (self.project, shipped_files.shipped_folder()):
            if folder.is_relative_to(top / "playbooks"):
                below = folder.relative_to(top).as_posix()
                names |= {
                    name.removeprefix(f"{below}/")
                    for name in shipped_files.list_names(self.project, f"{below}/**/*.yml")
                }
        return sorted(names)


@dataclass(frozen=True)
class Options:
    """The command line's options for a run."""

    check: bool = False
    diff: bool = False
    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    start_at_task: str = ""
    #: user@laptop
    who: str = ""
    #: seconds to wait for a lock that another run holds
    wait_s: float = 0
    #: variables that override all others, as rollback of `--no-rollback`
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Play:
    """A play."""

    file: PlayFile
    document: Document
    #: its place in the document
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
        """Return True if any expression of this play uses one of these names."""
        return not self._used_names.isdisjoint(names)

    @functools.cached_property
    def _used_names(self) -> set[str]:
        return _find_names(self.file.model_dump())

    def has_task(self, module: str) -> bool:
        """Return True if any task of this play, in blocks too, runs this module."""
        return any(module in step for step in self._steps())

    @property
    def acts_in_check(self) -> bool:
        """Return True if one of its tasks acts in check mode too (`check_mode: false`)."""
        return any(step.get("check_mode") is False for step in self._steps())

    def _steps(self) -> Iterator[Mapping[str, Any]]:
        return _all_steps([*self.file.tasks, *self.file.handlers])


@dataclass(frozen=True)
class Playbook:
    """The plays of a playbook."""

    #: its file
    path: Path
    plays: tuple[Play, ...]


def load(path: Path, project: Path) -> Playbook:
    """Read a playbook. Its parts are the project's, or else the shipped ones. Raises Refused with file and line."""
    source = splice_includes(document.load(path), project)
    if not isinstance(source.data, list) or not source.data:
        raise Refused("a playbook is a list of plays (- name: ..., hosts: ..., tasks: ...).", where=source.where())
    plays = [Play(validate(PlayFile, source, data, at=(n,)), source, (n,)) for n, data in enumerate(source.data)]
    for n, play in enumerate(plays):
        check_steps(source, play.file.tasks, (n, "tasks"))
        check_steps(source, play.file.handlers, (n, "handlers"))
    refuse_secrets(source)
    return Playbook(path, tuple(plays))


def _find_names(value: Any, key: str = "") -> set[str]:
    """Return the names in templates, and in the bare expressions of `when`, `until` and similar keys."""
    if isinstance(value, dict):
        return set().union(*(_find_names(child, str(name)) for name, child in value.items()))
    if isinstance(value, list | tuple):
        return set().union(*(_find_names(child, key) for child in value))
    if not isinstance(value, str):
        return set()
    try:
        bare = key in ("when", "until", "changed_when", "failed_when")
        return set(expressions.names_in_condition(value) if bare else expressions.names_in(value))
    except expressions.ExpressionError:
        return set()


def _all_steps(steps: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield tasks and blocks, and the steps inside the blocks."""
    for step in steps:
        yield step
        for part in ("block", "rescue", "always"):
            yield from _all_steps(step.get(part) or ())


SECRET_FILE_FIX = "Put it into a file on the host with mode 0600, and name that file."


def refuse_secrets(source: Document) -> None:
    """Raise Refused with file and line for the first secret in a play."""
    for at, place in _find_secrets(source.data, ()):
        raise rules.secret_error(place, source, at, fix="" if place[0] == "vars" else SECRET_FILE_FIX)


def check_steps(source: Document, items: list[Any], place: Place) -> None:
    """Raise Refused with file and line for the first task of a list with an invalid value of a key."""
    for n, item in enumerate(items):
        here = (*place, n)
        validate(BlockFile if isinstance(item, dict) and "block" in item else TaskFile, source, item, at=here)
        for part in TASK_LISTS:
            if isinstance(item.get(part), list):
                check_steps(source, item[part], (*here, part))


def _find_secrets(items: Any, at: Place) -> Iterator[tuple[Place, Place]]:
    """Yield the place of each secret: its play or task, and the place within that."""
    for n, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            continue
        here = (*at, n)
        yield from ((here, place) for place in find_plain_secrets(item.get("vars"), ("vars",)))
        for module in item.keys() & registry.NAMES:
            yield from (
                (here, place)
                for place in find_plain_secrets(item[module], (module,))
                if _is_secret_argument(place, item)
            )
        for name in TASK_LISTS:
            yield from _find_secrets(item.get(name), (*here, name))


def _is_secret_argument(place: Place, item: Any) -> bool:
    """Return True if a module's argument counts as a secret: by its looks, or as a variable.

    The argument's own name does not count: as `key`, it tells what the module does with it.
    """
    return "env" in place or is_secret("", reduce(getitem, place, item))
