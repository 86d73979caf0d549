"""The names that a play's expressions may use, and the file and line that a mistake in one is blamed on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.documents.document import Place, format_path
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook.playbook import Play
from sparkwright.protocol import expressions
from sparkwright.protocol.expressions import ExpressionError

#: "file:line" of a mistake; takes the line within the text, from 1, 0 where it is not known
Locate = Callable[..., str]


class ErrorLocator:
    """Finds the origins of mistakes in one play on one host."""

    def __init__(self, play: Play, host: Host) -> None:
        self._play = play
        self._host = host

    def in_playbook(self, *place: str | int) -> Locate:
        """Return a place of the playbook; within a text at that place no line is known."""
        return lambda line=0: self._play.document.where(*place)

    def of_variable(self, name: str) -> Locate:
        """Return the place where a variable of the play or of the host was set."""
        if name in self._play.file.vars:
            return self.in_playbook(*self._play.place, "vars", name)
        return lambda line=0: self._host.set_at.get(f"vars.{name}", self._host.where)

    @staticmethod
    def in_template(path: Path) -> Locate:
        """Return a place in a template."""
        return lambda line=0: f"{format_path(path)}:{line}" if line else format_path(path)

    def locate_argument_error(
        self, refused: Refused, place: Place, values: Mapping[str, Any], *, own: Mapping[str, Any]
    ) -> Refused:
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
        return Refused(message, where=self.of_variable(name)(), fix=refused.fix)

    def _origin(self, value: Any, own: Mapping[str, Any]) -> str:
        """Return the one variable of the play or the host that a value is made of; empty if there is no such one."""
        name, seen = "", set(own)
        while expressions.has_expression(value):
            names = expressions.names_in_value(value)
            name = next(iter(names)) if len(names) == 1 else ""
            if not name or name in seen:
                return ""
            seen.add(name)
            value = self._play.file.vars.get(name)
        return name if name in self._play.file.vars or f"vars.{name}" in self._host.set_at else ""


#: names that only the host knows
HOST_NAMES = frozenset({"facts", "failed_result"})
#: names whose values are data of the recipe: braces in them are not expressions
LITERAL_NAMES = frozenset(
    {
        "recipe",
        "container",
        "engine",
        "lock",
        "pinned_model",
        "serve",
        "arms",
        "arms_known",
        "loads",
        "recipe_files",
        "gateway",
    }
)


class Names:
    """The names that a play's expressions may use on one host.

    Attributes:
        known: names whose values the laptop knows.
        open_vars: variables that depend on what only the host will know.

    Args:
        registers: results of tasks.

    Raises Refused for variables that refer to each other, or to a name that will never have a value.
    """

    def __init__(
        self,
        blame: ErrorLocator,
        own: Mapping[str, Any],
        names: Mapping[str, Any],
        extra: Mapping[str, Any],
        registers: Set[str],
    ) -> None:
        self._blame = blame
        self._later, self._registers = HOST_NAMES | registers, registers
        self._asked: set[str] = set()
        self.known: dict[str, Any] = {}
        self.open_vars: dict[str, Any] = {}
        self._settle({**names, **extra}, {name: value for name, value in own.items() if name not in extra})

    def _settle(self, names: Mapping[str, Any], own: Mapping[str, Any]) -> None:
        """Render the play's and the host's variables as far as the laptop can; the rest stay open."""
        waiting = {name: v for name, v in names.items() if expressions.has_expression(v) and name not in LITERAL_NAMES}
        settled_values = {name: value for name, value in names.items() if name not in waiting}
        self.known = {name: value for name, value in settled_values.items() if name not in own}  # the play's own win
        waiting |= own
        # a variable may be made of the host's variable of the same name
        while ready := [
            name
            for name, value in waiting.items()
            if self._needs(value, name) <= self.known.keys() | {name} & settled_values.keys()
        ]:
            for name in ready:
                known = {**({name: settled_values[name]} if name in settled_values else {}), **self.known}
                self.known[name] = self.render(waiting.pop(name), known, self._blame.of_variable(name))
        self._refuse_cycle(waiting)
        known_later = self.known.keys() | waiting.keys() | self._later
        for name, value in waiting.items():
            self._refuse_unknown(self._needs(value, name) - known_later, self._blame.of_variable(name), known_later)
        self.open_vars = waiting

    def _refuse_cycle(self, waiting: Mapping[str, Any]) -> None:
        """Refuse variables that wait for each other. One that is named like a result may ask for that result."""
        own = self._later
        needs = {name: self._needs(value, name) - ({name} if name in own else set()) for name, value in waiting.items()}
        if path := find_cycle(needs):
            message = f"variables refer to each other: {' -> '.join(path)}."
            raise Refused(message, where=self._blame.of_variable(path[0])())

    def _needs(self, value: Any, name: str) -> frozenset[str]:
        try:
            return expressions.names_in_value(value)
        except ExpressionError as error:
            raise Refused(f"vars.{name}: {error}.", where=self._blame.of_variable(name)()) from None

    def render(self, value: Any, names: Mapping[str, Any], at: Locate) -> Any:
        """Return a value with its expressions rendered. Raises Refused with its line."""
        try:
            return expressions.render(value, names)
        except ExpressionError as error:
            raise Refused(f"{error}.", where=at(error.line)) from None

    def with_local(self, local: Mapping[str, Any]) -> dict[str, Any]:
        """Return the known names with the variables of a task and its blocks."""
        return self.known | {
            name: self.render(value, self.known, self._blame.in_playbook()) for name, value in local.items()
        }

    def is_known(self, value: Any, at: Locate, local: Mapping[str, Any]) -> bool:
        """Return True if a value needs only names that are known here. If not, the known names it needs are sent with the plan.

        Args:
            local: variables of the task and its blocks, which are not sent to the host.

        Raises Refused for a name that will never have a value, and for a local variable beside a name that only the host knows.
        """
        try:
            needed = expressions.names_in_value(value)
        except ExpressionError as error:
            raise Refused(f"{error}.", where=at(error.line)) from None
        here = (
            self.known.keys() - self._registers
        ) | local.keys()  # a variable named like a result holds until that is there
        known = here | self.known.keys() | self.open_vars.keys() | self._later
        self._refuse_unknown(needed - known, at, known, value)
        if needed <= here:
            return True
        self._refuse_mixed(sorted(needed & local.keys()), min(needed - here), at, value)
        self._asked |= needed
        return False

    @staticmethod
    def _refuse_mixed(local: Sequence[str], later: str, at: Locate, value: Any) -> None:
        if local:
            line = expressions.line_of_name(value, local[0]) if isinstance(value, str) else 0
            message = f"`{local[0]}`, a variable of this task or its block, stands beside `{later}`, which only the host knows."
            fix = f"Give `{local[0]}` in `vars` of the play, or ask for it in a condition of its own."
            raise Refused(message, where=at(line), fix=fix)

    def _refuse_unknown(self, unknown: Set[str], at: Locate, known: Collection[str], value: Any = None) -> None:
        if unknown:
            name = min(unknown)
            line = expressions.line_of_name(value, name) if isinstance(value, str) else 0
            raise Refused(
                f"unknown variable `{name}`.", where=at(line), fix=suggest_name(name, known, label="Known keys")
            )

    def host_values(self) -> dict[str, Any]:
        """Return the laptop's values that open expressions use, and no others."""
        names = self._asked.union(*map(expressions.names_in_value, self.open_vars.values()))
        return {name: self.known[name] for name in sorted(names) if name in self.known}


def find_cycle(needs: Mapping[str, Set[str]]) -> tuple[str, ...]:
    """Return the path from a name back to itself, with that name first and last; empty if there is none.

    needs: the names that each name depends on.
    """
    remaining = dict(needs)
    while ready := [name for name in remaining if not needs[name] & remaining.keys()]:
        for name in ready:
            del remaining[name]
    path: list[str] = []
    name = next(iter(remaining), "")
    while name and name not in path:
        path.append(name)
        name = min(needs[name] & remaining.keys())
    return (*path[path.index(name) :], name) if path else ()
