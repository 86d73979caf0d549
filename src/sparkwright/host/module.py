"""Base classes of modules: arguments in, a Result out, with the Context to work in.

A module is one class in one file of modules/SUBJECT/, named after the file in CamelCase; registry.py finds it there. Its
docstring is its documentation: what it guarantees, its arguments with units, what it returns, what can go wrong.
Its arguments are the fields of its nested frozen dataclass `Args`; the laptop checks a playbook against them.

    class File(StateModule["File.Args", FileState]):
        \"\"\"...\"\"\"
        @dataclass(frozen=True)
        class Args:
            path: str = arg("where; ~ is the user's home")
        def read(self, args, context) -> FileState: ...               # reads, never changes
        def differences(self, args, observed) -> list[Change]: ...    # pure: tested as data
        def act(self, args, observed, changes, context) -> dict: ...  # makes the changes; what it returns is registered

A module that only reads, waits or verifies something is a plain `Module` and implements `run` itself.
Heavy libraries (docker, hf_xet) are imported inside functions: the laptop imports modules for their `Args`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from sparkwright.protocol.result import Change, Result

#: a module's environment, created by the runner. A name only: the laptop imports modules, but never docker
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
    #: False: skipped in check mode if an earlier task of the run would have changed what it reads.
    safe_in_check: ClassVar[bool] = True
    #: True: runs in the run's own process, `become` or not.
    never_as_root: ClassVar[bool] = False

    @abstractmethod
    def run(self, args: ArgsT, context: Context) -> Result:
        """Run the module; with `context.check`, report the changes without making them."""


class StateModule(Module[ArgsT], Generic[ArgsT, StateT]):
    """A module that brings something into an intended state. The same three steps apply in check mode and in a real run."""

    @abstractmethod
    def read(self, args: ArgsT, context: Context) -> StateT:
        """Return the present state. Never changes anything."""

    @abstractmethod
    def differences(self, args: ArgsT, observed: StateT) -> list[Change]:
        """Return the differences between the intended and the present state. Pure."""

    @abstractmethod
    def act(self, args: ArgsT, observed: StateT, changes: list[Change], context: Context) -> dict[str, Any]:
        """Make the changes. Returns data to register."""

    def describe(self, args: ArgsT, observed: StateT) -> dict[str, Any]:
        """Return data to register without changes, or in check mode. Pure."""
        return {}

    def run(self, args: ArgsT, context: Context) -> Result:
        observed = self.read(args, context)
        changes = self.differences(args, observed)
        data = self.describe(args, observed)
        if changes and not context.check:
            data = {**data, **self.act(args, observed, changes, context)}
        return Result(changed=bool(changes), diff=changes, data=data, msg=data.pop("msg", ""))
