"""A playbook as its file has it: plays, with the line of everything."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.modules import registry
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import check
from sparkwright.project.inventory import rules
from sparkwright.project.playbook import includes
from sparkwright.project.playbook.includes import LISTS
from sparkwright.project.playbook.models import BlockFile, PlayFile, TaskFile
from sparkwright.protocol import expressions
from sparkwright.trust.secret_names import is_secret, plain_secrets


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
    read = includes.spliced(document.load(path), project)
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
