"""The variables that a play's expressions may use, and the locations of their mistakes for error messages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from pathlib import Path
from typing import Any

from sparkwright.errors import Refused
from sparkwright.project.documents.document import Place, format_path
from sparkwright.project.documents.validation import suggest_name
from sparkwright.project.inventory.host import Host
from sparkwright.project.playbook.playbook import Play
from sparkwright.protocol import expressions
from sparkwright.protocol.expressions import ExpressionError

#: returns the "file:line" of a mistake; argument: 1-based line within the text, 0 (default) if unknown
Locate = Callable[..., str]
#: names whose values exist only on the host
HOST_ONLY_NAMES = frozenset({"facts", "failed_result"})
#: names whose values are data, in which braces are not expressions
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


class ErrorLocator:
    """Finds the "file:line" of mistakes in a play that runs on a host."""

    def __init__(self, play: Play, host: Host) -> None:
        self._play = play
        self._host = host

    def in_playbook(self, *place: str | int) -> Locate:
        """Return a function that locates a place of the playbook. It ignores the line within a text at this place."""
        return lambda line=0: self._play.document.where(*place)

    def of_variable(self, name: str) -> Locate:
        """Return a function that locates the setting of a variable of the play or the host."""
        if name in self._play.file.vars:
            return self.in_playbook(*self._play.place, "vars", name)
        return lambda line=0: self._host.set_at.get(f"vars.{name}", self._host.where)

    @staticmethod
    def in_template(path: Path) -> Locate:
        """Return a function that locates a line of a template."""
        return lambda line=0: f"{format_path(path)}:{line}" if line else format_path(path)

    def locate_argument_error(
        self, refused: Refused, place: Place, arguments: Mapping[str, Any], local_vars: Mapping[str, Any]
    ) -> Refused:
        """Return an error about a module's arguments with the line of the wrong value, or of the variable that sets it.

        Args:
            place: place of the module in the playbook.
            arguments: the module's arguments as written.
            local_vars: variables of the task and its blocks.
        """
        module = place[-1]
        key = next(
            (key for key in arguments if f"`{key}`" in refused.message or f"{module}.{key}" in refused.message), None
        )
        where = self._play.document.where(*place, *([key] if key else []))
        name = self._find_origin(arguments.get(key), local_vars) if key else ""
        if not name:
            return Refused(refused.message, where=where, fix=refused.fix)
        message = f"`vars.{name}`, used at {where}: {refused.message}"
        return Refused(message, where=self.of_variable(name)(), fix=refused.fix)

    def _find_origin(self, value: Any, local_vars: Mapping[str, Any]) -> str:
        """Return the only variable of the play or the host that a value depends on; empty if there is not exactly one."""
        name, visited = "", set(local_vars)
        while expressions.has_expression(value):
            names = expressions.names_in_value(value)
            name = next(iter(names)) if len(names) == 1 else ""
            if not name or name in visited:
                return ""
            visited.add(name)
            value = self._play.file.vars.get(name)
        return name if name in self._play.file.vars or f"vars.{name}" in self._host.set_at else ""


class PlayVariables:
    """The variables that a play's expressions may use on a host.

    Attributes:
        laptop_values: values of the variables that the laptop can compute, by name.
        host_vars: unrendered variables, by name, which the host evaluates because they depend on names of the host.

    Args:
        play_vars: `vars` of the play.
        variables: variables of the host and its recipe; see `recipe.scope`.
        extra: values that override all others.
        registered_names: names that tasks register.

    Raises Refused for variables that refer to each other, or to an unknown name.
    """

    def __init__(
        self,
        locator: ErrorLocator,
        play_vars: Mapping[str, Any],
        variables: Mapping[str, Any],
        extra: Mapping[str, Any],
        registered_names: Set[str],
    ) -> None:
        self._locator = locator
        self._host_only_names, self._registered_names = HOST_ONLY_NAMES | registered_names, registered_names
        #: names of Jinja2 that no variable hides
        self._global_names = expressions.GLOBAL_NAMES.difference(play_vars, variables, extra, registered_names)
        self._sent_names: set[str] = set()
        self.laptop_values: dict[str, Any] = {}
        self.host_vars: dict[str, Any] = {}
        self._render_variables(
            {**variables, **extra}, {name: value for name, value in play_vars.items() if name not in extra}
        )

    def _render_variables(self, variables: Mapping[str, Any], play_vars: Mapping[str, Any]) -> None:
        """Set `laptop_values` and `host_vars`. Variables of the play override `variables`."""
        unrendered_values = {
            name: value
            for name, value in variables.items()
            if expressions.has_expression(value) and name not in LITERAL_NAMES
        }
        plain_values = {name: value for name, value in variables.items() if name not in unrendered_values}
        self.laptop_values = {name: value for name, value in plain_values.items() if name not in play_vars}
        unrendered_values |= play_vars
        # a play's variable may refer to the host's variable of the same name
        while ready_names := [
            name
            for name, value in unrendered_values.items()
            if self._find_names(value, name) <= self.laptop_values.keys() | {name} & plain_values.keys()
        ]:
            for name in ready_names:
                values = {**({name: plain_values[name]} if name in plain_values else {}), **self.laptop_values}
                self.laptop_values[name] = self.render(
                    unrendered_values.pop(name), values, self._locator.of_variable(name)
                )
        self._refuse_cycle(unrendered_values)
        all_names = self.laptop_values.keys() | unrendered_values.keys() | self._host_only_names
        for name, value in unrendered_values.items():
            self._refuse_unknown(self._find_names(value, name) - all_names, self._locator.of_variable(name), all_names)
        self.host_vars = unrendered_values

    def _refuse_cycle(self, variables: Mapping[str, Any]) -> None:
        """Refuse variables that refer to each other. A variable may refer to a task's result of the same name."""
        dependencies = {
            name: self._find_names(value, name) - ({name} if name in self._host_only_names else set())
            for name, value in variables.items()
        }
        if path := find_cycle(dependencies):
            message = f"variables refer to each other: {' -> '.join(path)}."
            raise Refused(message, where=self._locator.of_variable(path[0])())

    def _find_names(self, value: Any, name: str) -> frozenset[str]:
        try:
            return expressions.names_in_value(value) - self._global_names
        except ExpressionError as error:
            raise Refused(f"vars.{name}: {error}.", where=self._locator.of_variable(name)()) from None

    def render(self, value: Any, variables: Mapping[str, Any], locate: Locate) -> Any:
        """Return a value with its expressions rendered. Raises Refused for an invalid expression."""
        try:
            return expressions.render(value, variables)
        except ExpressionError as error:
            raise Refused(f"{error}.", where=locate(error.line)) from None

    def with_local(self, local_vars: Mapping[str, Any]) -> dict[str, Any]:
        """Return the laptop's values and the variables of a task and its blocks, by name."""
        return self.laptop_values | {
            name: self.render(value, self.laptop_values, self._locator.in_playbook())
            for name, value in local_vars.items()
        }

    def can_render(self, value: Any, locate: Locate, local_vars: Mapping[str, Any]) -> bool:
        """Return True if the laptop can render a value. If not, `values_for_host` will include the values that it needs.

        Raises Refused for an unknown name, and for a value that uses both local variables and names of the host.

        local_vars: variables of the task and its blocks, which are not sent to the host.
        """
        try:
            used_names = expressions.names_in_value(value) - self._global_names.difference(local_vars)
        except ExpressionError as error:
            raise Refused(f"{error}.", where=locate(error.line)) from None
        # a variable with the name of a result is valid only until the host has the result
        renderable_names = (self.laptop_values.keys() - self._registered_names) | local_vars.keys()
        all_names = renderable_names | self.laptop_values.keys() | self.host_vars.keys() | self._host_only_names
        self._refuse_unknown(used_names - all_names, locate, all_names, value)
        if used_names <= renderable_names:
            return True
        if used_names & local_vars.keys():
            name, host_only_name = min(used_names & local_vars.keys()), min(used_names - renderable_names)
            line = expressions.line_of_name(value, name) if isinstance(value, str) else 0
            message = f"one expression cannot use both `{name}`, a variable of this task or its block, and `{host_only_name}`, "
            message += "which is evaluated on the host."
            fix = f"Set `{name}` in `vars` of the play, or use it in a separate condition."
            raise Refused(message, where=locate(line), fix=fix)
        self._sent_names |= used_names
        return False

    def _refuse_unknown(
        self, unknown_names: Set[str], locate: Locate, valid_names: Collection[str], value: Any = None
    ) -> None:
        if unknown_names:
            name = min(unknown_names)
            line = expressions.line_of_name(value, name) if isinstance(value, str) else 0
            fix = suggest_name(name, valid_names, label="Known variables")
            raise Refused(f"unknown variable `{name}`.", where=locate(line), fix=fix)

    def values_for_host(self) -> dict[str, Any]:
        """Return the laptop's values that the host needs to evaluate the remaining expressions."""
        names = self._sent_names.union(*map(expressions.names_in_value, self.host_vars.values()))
        return {name: self.laptop_values[name] for name in sorted(names) if name in self.laptop_values}


def find_cycle(dependencies: Mapping[str, Set[str]]) -> tuple[str, ...]:
    """Return a cycle of names that depend on each other, with the same name first and last; empty if there is none.

    dependencies: the names that each name depends on. Other names are ignored.
    """
    remaining = dict(dependencies)
    while ready_names := [name for name in remaining if not dependencies[name] & remaining.keys()]:
        for name in ready_names:
            del remaining[name]
    path: list[str] = []
    name = next(iter(remaining), "")
    while name and name not in path:
        path.append(name)
        name = min(dependencies[name] & remaining.keys())
    return (*path[path.index(name) :], name) if path else ()
