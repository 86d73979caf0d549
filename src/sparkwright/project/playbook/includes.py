"""`include: parts/x.yml`: tasks shared by several playbooks, inserted before anything else is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import check, nearest
from sparkwright.project.playbook.models import IncludeFile
from sparkwright.visible import one_line

#: limits for the includes of one playbook, repeated ones counted, and for the nesting of task lists
MOST_INCLUDES = 200
DEEPEST = 24
LISTS = ("tasks", "handlers", "block", "rescue", "always")


def spliced(read: Document) -> Document:
    """Return the document with each include replaced by a block of the file's tasks.

    Lines of an included task are those of its own file. Raises Refused for a missing file, or one that includes itself.
    """
    splicer = _Splicer(read, (read.path.resolve(),), 0, [])
    data = splicer.inside(read.data, ())
    return replace(read, data=data, grafts=splicer.grafts)


class _Splicer:
    """Puts included files into the lists of a playbook.

    Args:
        opened: the files that led to this one, to find a circle.
        depth: number of enclosing lists.
        included: every file included so far.
    """

    def __init__(self, read: Document, opened: tuple[Path, ...], depth: int, included: list[Path]) -> None:
        self.read = read
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
        path = self.read.path.parent / given.include
        at = self.read.where(*place, "include")
        if not document.is_file(path):
            known = [str(path.relative_to(self.read.path.parent)) for path in self.read.path.parent.rglob("*.yml")]
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
        inner = _Splicer(part, (*self.opened, path.resolve()), self.depth, self.included)
        tasks = inner.inside(part.data, ())
        self.grafts[(*place, "block")] = replace(part, data=tasks, grafts=inner.grafts)
        return {"name": given.include, **{k: v for k, v in item.items() if k != "include"}, "block": tasks}
