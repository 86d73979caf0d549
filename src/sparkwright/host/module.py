"""Base classes of modules, which take arguments and a Context, and return a Result.

A module is a class in a file of modules/SUBJECT/, listed in registry.py. Its docstring is its documentation: guarantees,
arguments with units, return values, errors. Its arguments are the fields of the nested frozen dataclass `Args`; the laptop
checks playbooks against them.

    class File(StateModule["File.Args", FileState]):
        \"\"\"...\"\"\"
        @dataclass(frozen=True)
        class Args:
            path: str = arg("where; ~ is the user's home")
        def read(self, args, context) -> FileState: ...               # reads, never changes
        def differences(self, args, observed) -> list[Change]: ...    # pure, so it can be tested without a host
        def act(self, args, observed, changes, context) -> dict: ...  # makes the changes; returns data to register

A module that only reads, waits or verifies is a plain `Module` and implements `run`. Heavy libraries (docker, hf_xet) are
imported inside functions, because the laptop imports modules for their `Args`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from sparkwright.protocol.result import Change, Result

#: a module's environment, created by the runner; imported only for type checks, because the laptop has no docker package
if TYPE_CHECKING:
    from sparkwright.host.runs.context import RunContext

    Context: TypeAlias = RunContext
else:
    Context = Any

ArgsT = TypeVar("ArgsT")
StateT = TypeVar("StateT")


class Module(ABC, Generic[ArgsT]):
    """A unit of work on the host. Raises Failed, Refused or Inconclusive, or returns a Result."""

    Args: ClassVar[type[Any]]
    #: if False, skipped in check mode after a task that would have changed something
    valid_in_check_mode: ClassVar[bool] = True
    #: if True, the module puts load on the server: skipped in check mode, except in a play with `measures`
    loads_server: ClassVar[bool] = False
    #: if True, runs in the run's process even with `become`
    never_as_root: ClassVar[bool] = False

    @abstractmethod
    def run(self, args: ArgsT, context: Context) -> Result:
        """Run the module. With `context.check`, only report the changes."""


class StateModule(Module[ArgsT], Generic[ArgsT, StateT]):
    """A module that brings a resource into its intended state. Check mode runs every step except `act`."""

    @abstractmethod
    def read(self, args: ArgsT, context: Context) -> StateT:
        """Return the current state, without changing anything."""

    @abstractmethod
    def differences(self, args: ArgsT, observed: StateT) -> list[Change]:
        """Return the differences between the intended and the current state, from its arguments alone."""

    @abstractmethod
    def act(self, args: ArgsT, observed: StateT, changes: list[Change], context: Context) -> dict[str, Any]:
        """Make the changes. Returns data to register."""

    def describe(self, args: ArgsT, observed: StateT) -> dict[str, Any]:
        """Return data to register; `act` may replace it."""
        return {}

    def run(self, args: ArgsT, context: Context) -> Result:
        observed = self.read(args, context)
        changes = self.differences(args, observed)
        data = self.describe(args, observed)
        if changes and not context.check:
            data = {**data, **self.act(args, observed, changes, context)}
        return Result(changed=bool(changes), diff=changes, data=data, msg=data.pop("msg", ""))
