"""`include: parts/x.yml`: tasks shared by several playbooks, inserted before anything else is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project import shipped_files
from sparkwright.project.documents import document
from sparkwright.project.documents.document import Document, Place
from sparkwright.project.documents.validation import check, nearest
from sparkwright.project.playbook.models import IncludeFile
from sparkwright.visible import one_line

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
