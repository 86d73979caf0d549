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
from sparkwright.project.documents.validation import Strict, about, check, nearest
from sparkwright.project.inventory import rules
from sparkwright.project.rollout_policy import why_no_size
from sparkwright.protocol import expressions
from sparkwright.trust.secret_names import is_secret, plain_secrets
from sparkwright.visible import one_line

#: limit for tries, and for the seconds between them
MOST = 10**9

Condition = bool | str | list[bool | str]


class Common(Strict):
    """The keywords of both tasks and blocks."""

    name: str = about("the task's name, shown on the screen", "")
    when: Condition | None = about("expressions that must all be true", None)
    tags: list[str] | str = about("for --tags; `always` and `never` as in Ansible", default_factory=list)
    become: bool | None = about("run as root, through sudo", None)
    server: str | None = about(
        "of a host with several servers: the container that it is about, if not the play's own", None
    )
    vars: dict[str, Any] = about("variables", default_factory=dict)
    stage: str = about(
        "the stage of the run that begins here, a line on a terminal: prepare, stop, start", "", max_length=24
    )


class TaskFile(Common):
    """One module with its arguments. The module's name is the key that is none of these."""

    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True)

    register_as: str | None = about("variable that holds the result", None, alias="register")
    until: Condition | None = about("retry until this is true", None)
    retries: int = about("number of retries (3 with `until`)", 0, ge=0, le=MOST)
    delay: float = about("seconds between retries", 5, ge=0, le=MOST)
    notify: list[str] | str = about("handlers to run at the end if the task changed something", default_factory=list)
    changed_when: Condition | None = about("condition under which the task counts as changed", None)
    failed_when: Condition | None = about("condition under which the task counts as failed", None)
    ignore_errors: bool = about("continue after a failure", False)
    no_log: bool = about("hide message, data and diff", False)
    check_mode: bool | None = about("true: always in check mode; false: act even with --check", None)


class BlockFile(Common):
    """Tasks that succeed or fail together."""

    block: list[dict[str, Any]] = about("the tasks")
    rescue: list[dict[str, Any]] = about("tasks to run if one of them failed", default_factory=list)
    always: list[dict[str, Any]] = about("tasks to run in any case", default_factory=list)


class IncludeFile(Common):
    """Tasks of another file, as one block in its place."""

    include: str = about("a file with a list of tasks, relative to this one: parts/swap.yml")


class PlayFile(Strict):
    """Tasks for some hosts."""

    name: str = about("what this play does", "")
    hosts: str = about("a host pattern; --host narrows it")
    serial: list[int | str] | int | str = about('batch size: 1, "25%", [1, "50%"]', default_factory=list)
    max_fail_percentage: float | None = about("stop if more than this share of a batch failed", None, ge=0, le=100)
    vars: dict[str, Any] = about("variables", default_factory=dict)
    tags: list[str] | str = about("tags of all its tasks", default_factory=list)
    become: bool = about("run its tasks as root, through sudo", False)
    read_only: bool = about("it changes nothing: it takes no lock and may run during a deploy", False)
    measures: bool = about(
        "it measures the server: while another run is in progress on the host it waits (`--wait`) or exits with 4",
        False,
    )
    force_handlers: bool = about("run notified handlers even after a failure", False)
    tasks: list[dict[str, Any]] = about("tasks and blocks", default_factory=list)
    handlers: list[dict[str, Any]] = about("tasks that run when notified", default_factory=list)

    @field_validator("serial", mode="before")
    @classmethod
    def _sizes(cls, value: Any) -> Any:
        for item in value if isinstance(value, list) else [value]:
            why = why_no_size(item)
            if why:
                raise ValueError(why)
        return value


#: limits for the includes of one playbook, repeated ones counted, and for the nesting of task lists
MOST_INCLUDES = 200
DEEPEST = 24
LISTS = ("tasks", "handlers", "block", "rescue", "always")


def spliced(read: Document, project: Path) -> Document:
    """Return the document with each include replaced by a block of the file's tasks.

    Lines of an included task are those of its own file. A project's file wins over the shipped one of its name.

    Raises Refused for a missing file, or one that includes itself.
    """
    splicer = _Splicer(read, project, (read.path.resolve(),), 0, [])
    data = splicer.inside(read.data, ())
    return replace(read, data=data, grafts=splicer.grafts)


class _Splicer:
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

    def inside(self, value: Any, place: Place) -> Any:
        """Return a list of plays or of tasks with its includes replaced, at every depth."""
        if not isinstance(value, list):
            return value
        if self.depth > DEEPEST:
            message = f"blocks and includes are nested more than {DEEPEST} levels deep."
            raise Refused(message, where=self.read.where(*place))
        self.depth += 1
        found = [self._item(item, (*place, n)) for n, item in enumerate(value)]
        self.depth -= 1
        return found

    def _item(self, item: Any, place: Place) -> Any:
        if not isinstance(item, dict):
            return item
        if "include" in item:
            return self._included(item, place)
        return {key: self.inside(value, (*place, key)) if key in LISTS else value for key, value in item.items()}

    def _included(self, item: dict[str, Any], place: Place) -> dict[str, Any]:
        given = check(IncludeFile, self.read, item, at=place)
        path = shipped_files.beside(self.project, self.read.path, given.include)
        at = self.read.where(*place, "include")
        if not document.is_file(path):
            known = self._known()
            message = f"no file '{one_line(given.include, at_most=80)}' in the same directory."
            raise Refused(message, where=at, fix=nearest(given.include, known))
        if path.resolve() in self.opened:
            raise Refused(f"{given.include} includes itself.", where=at)
        self.included.append(path)
        if len(self.included) > MOST_INCLUDES:
            raise Refused(f"more than {MOST_INCLUDES} includes.", where=at)
        part = document.load(path)
        if not isinstance(part.data, list):
            raise Refused("an included file must be a list of tasks.", where=part.where())
        inner = _Splicer(part, self.project, (*self.opened, path.resolve()), self.depth, self.included)
        tasks = inner.inside(part.data, ())
        self.grafts[(*place, "block")] = replace(part, data=tasks, grafts=inner.grafts)
        return {"name": given.include, **{k: v for k, v in item.items() if k != "include"}, "block": tasks}

    def _known(self) -> list[str]:
        """Return the files that an include here could name, as it would name them."""
        folder = self.read.path.parent
        names = {path.relative_to(folder).as_posix() for path in folder.rglob("*.yml")}
        for top in (self.project, shipped_files.source()):
            if folder.is_relative_to(top / "playbooks"):
                below = folder.relative_to(top).as_posix()
                names |= {
                    name.removeprefix(f"{below}/") for name in shipped_files.names(self.project, f"{below}/**/*.yml")
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
        return not self._asked_for.isdisjoint(names)

    @functools.cached_property
    def _asked_for(self) -> set[str]:
        return _names(self.file.model_dump())

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
    read = spliced(document.load(path), project)
    if not isinstance(read.data, list) or not read.data:
        raise Refused("a playbook is a list of plays (- name: ..., hosts: ..., tasks: ...).", where=read.where())
    plays = [Play(check(PlayFile, read, data, at=(n,)), read, (n,)) for n, data in enumerate(read.data)]
    for n, play in enumerate(plays):
        refuse_steps(read, play.file.tasks, (n, "tasks"))
        refuse_steps(read, play.file.handlers, (n, "handlers"))
    refuse(read)
    return Playbook(path, tuple(plays))


def _names(value: Any, key: str = "") -> set[str]:
    """Return the names in templates, and in the bare expressions of `when`, `until` and similar keys."""
    if isinstance(value, dict):
        return set().union(*(_names(child, str(name)) for name, child in value.items()))
    if isinstance(value, list | tuple):
        return set().union(*(_names(child, key) for child in value))
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


IN_A_FILE = "Put it into a file on the host with mode 0600, and name that file."


def refuse(read: Document) -> None:
    """Raise Refused with file and line for the first secret in a play."""
    for at, place in _secrets(read.data, ()):
        raise rules.refusal(place, read, at, fix="" if place[0] == "vars" else IN_A_FILE)


def refuse_steps(read: Document, items: list[Any], place: Place) -> None:
    """Raise Refused with file and line for the first task of a list with an invalid value of a key."""
    for n, item in enumerate(items):
        here = (*place, n)
        check(BlockFile if isinstance(item, dict) and "block" in item else TaskFile, read, item, at=here)
        for part in LISTS:
            if isinstance(item.get(part), list):
                refuse_steps(read, item[part], (*here, part))


def _secrets(items: Any, at: Place) -> Iterator[tuple[Place, Place]]:
    """Yield the place of each secret: its play or task, and the place within that."""
    for n, item in enumerate(items if isinstance(items, list) else ()):
        if not isinstance(item, dict):
            continue
        here = (*at, n)
        yield from ((here, place) for place in plain_secrets(item.get("vars"), ("vars",)))
        for module in item.keys() & registry.NAMES:
            yield from ((here, place) for place in plain_secrets(item[module], (module,)) if _counts(place, item))
        for name in LISTS:
            yield from _secrets(item.get(name), (*here, name))


def _counts(place: Place, item: Any) -> bool:
    """Return True if a module's argument counts as a secret: by its looks, or as a variable.

    The argument's own name does not count: as `key`, it tells what the module does with it.
    """
    return "env" in place or is_secret("", reduce(getitem, place, item))
