"""A playbook as its file has it: plays, with the line of everything."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import check
from sparkwright.project.playbook import includes, rules
from sparkwright.project.playbook.models import PlayFile
from sparkwright.protocol import expressions


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
        rules.refuse_steps(read, play.file.tasks, (n, "tasks"))
        rules.refuse_steps(read, play.file.handlers, (n, "handlers"))
    rules.refuse(read)
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
