"""The origin of a mistake: a line of the playbook, of the inventory that set the variable, or of a template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.documents.document import Place, shown
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook.playbook import Play
from sparkwright.protocol import expressions

#: "file:line" of a mistake; takes the line within the text, from 1, 0 where it is not known
Where = Callable[..., str]


class Blame:
    """Finds the origins of mistakes in one play on one host."""

    def __init__(self, play: Play, host: Host) -> None:
        self._play = play
        self._host = host

    def place(self, *place: str | int) -> Where:
        """Return a place of the playbook; within a text at that place no line is known."""
        return lambda line=0: self._play.document.where(*place)

    def variable(self, name: str) -> Where:
        """Return the place where a variable of the play or of the host was set."""
        if name in self._play.file.vars:
            return self.place(*self._play.place, "vars", name)
        return lambda line=0: self._host.set_at.get(f"vars.{name}", self._host.where)

    @staticmethod
    def text(path: Path) -> Where:
        """Return a place in a template."""
        return lambda line=0: f"{shown(path)}:{line}" if line else shown(path)

    def argument(self, refused: Refused, place: Place, values: Mapping[str, Any], *, own: Mapping[str, Any]) -> Refused:
        """Return a module's error about its arguments, with the line of the wrong value.

        Args:
            place: the module's place in the playbook.
            values: its arguments as written.
            own: variables of the task and its blocks.
        """
        module = place[-1]
        key = next(
            (key for key in values if f"`{key}`" in refused.message or f"{module}.{key}" in refused.message), None
        )
        where = self._play.document.where(*place, *([key] if key else []))
        name = self._origin(values.get(key), own) if key else ""
        if not name:
            return Refused(refused.message, where=where, fix=refused.fix)
        message = f"`vars.{name}`, read at {where}: {refused.message}"
        return Refused(message, where=self.variable(name)(), fix=refused.fix)

    def _origin(self, value: Any, own: Mapping[str, Any]) -> str:
        """Return the one variable of the play or the host that a value is made of; empty if there is no such one."""
        name, seen = "", set(own)
        while expressions.is_open(value):
            names = expressions.names_in_value(value)
            name = next(iter(names)) if len(names) == 1 else ""
            if not name or name in seen:
                return ""
            seen.add(name)
            value = self._play.file.vars.get(name)
        return name if name in self._play.file.vars or f"vars.{name}" in self._host.set_at else ""
